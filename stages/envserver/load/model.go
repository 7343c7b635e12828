package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/internal/lm"
)

// said is the model's answer to everything: some 200 tokens of one byte each, in the form that the environment asks for.
var said = "<combined_alphabetical_sorted>\n" + strings.Repeat("AdaLovelace // new name!\n", 6) + "</combined_alphabetical_sorted>"

// figures are what the model counts.
type figures struct {
	Waiting int `json:"waiting"` // calls that wait for their answers
	Most    int `json:"most"`    // that did so at once since that was last forgotten
	Calls   int `json:"calls"`
}

// slow is a model that answers every call after a while, whatever it is asked. That is longer than it was told where the calls that
// it is to have at once need longer to come: the first is answered when they have, and each after the time that took.
type slow struct {
	takes  time.Duration // under mu
	atOnce int           // under mu; 0 once they have come
	full   chan struct{} // closed when as many calls have waited at once
	whole  []byte        // the answer to /inference/v1/generate
	mu     sync.Mutex
	first  time.Time // when the first call came
	figures
}

// serveModel serves a slow model at an address that it prints, until ctx ends. It answers nobody before some number of calls wait at
// once, 0 for none.
func serveModel(ctx context.Context, takes time.Duration, atOnce int) error {
	tok, err := lm.NewTokenizer("")
	if err != nil {
		return err
	}
	s := &slow{takes: takes, atOnce: atOnce, full: make(chan struct{})}
	if atOnce == 0 {
		close(s.full)
	}
	if s.whole, err = generated(append(tok.Encode(said), tok.EOS())); err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST /inference/v1/generate", s.generate)
	mux.HandleFunc("POST /v1/chat/completions", s.chat)
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprint(w, `{"object":"list","data":[{"id":"slow","object":"model","max_model_len":32768}]}`)
	})
	mux.HandleFunc("/figures", s.tell)
	l, err := net.Listen("tcp", "localhost:0")
	if err != nil {
		return err
	}
	fmt.Printf("http://%s\n", l.Addr())
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: time.Minute}
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() })
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// generated is an answer in tokens.
func generated(tokens []int32) ([]byte, error) {
	type one struct {
		Token   string  `json:"token"`
		Logprob float64 `json:"logprob"`
	}
	var content []one
	for _, id := range tokens {
		content = append(content, one{fmt.Sprintf("token_id:%d", id), -0.25})
	}
	return json.Marshal(map[string]any{"request_id": "slow", "choices": []any{map[string]any{
		"index": 0, "token_ids": tokens, "finish_reason": "stop", "logprobs": map[string]any{"content": content},
		"policy_versions": []any{map[string]any{"offset": 0, "version": 0}},
	}}})
}

// stays is how long all calls wait before the first is answered, for those who look at the server meanwhile.
const stays = 3 * time.Second

// wait lets a call wait, and counts it.
func (s *slow) wait(ctx context.Context) {
	came := s.count(1)
	defer s.count(-1)
	select {
	case <-s.full:
	case <-time.After(patience): // those who ask say that they were not as many
	case <-ctx.Done():
	}
	s.mu.Lock()
	takes := s.takes
	s.mu.Unlock()
	select {
	case <-time.After(time.Until(came.Add(takes))):
	case <-ctx.Done():
	}
}

func (s *slow) count(n int) (now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now = time.Now()
	if s.first.IsZero() {
		s.first = now
	}
	s.Waiting += n
	s.Calls += max(n, 0)
	s.Most = max(s.Most, s.Waiting)
	if s.atOnce > 0 && s.Waiting >= s.atOnce {
		s.takes, s.atOnce = max(s.takes, now.Sub(s.first)+stays), 0
		close(s.full)
	}
	return now
}

func (s *slow) generate(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body) // it says the same whatever it is asked
	s.wait(r.Context())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Content-Length", strconv.Itoa(len(s.whole)))
	_, _ = w.Write(s.whole) // the one who asked may have gone
}

// chat answers in one piece, or as a stream of two: the cheapest there is for the one who reads it.
func (s *slow) chat(w http.ResponseWriter, r *http.Request) {
	var asked struct {
		Stream bool `json:"stream"`
	}
	if err := json.NewDecoder(r.Body).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	s.wait(r.Context())
	usage := map[string]any{"prompt_tokens": 100, "completion_tokens": 200, "total_tokens": 300}
	message := map[string]any{"role": "assistant", "content": said}
	if !asked.Stream && r.Header.Get("Accept") != "text/event-stream" {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"id": "slow", "object": "chat.completion", "created": 1, "model": "slow", "usage": usage,
			"choices": []any{map[string]any{"index": 0, "finish_reason": "stop", "message": message}}})
		return
	}
	w.Header().Set("Content-Type", "text/event-stream")
	chunk := func(choices []any, usage any) {
		data, err := json.Marshal(map[string]any{"id": "slow", "object": "chat.completion.chunk", "created": 1, "model": "slow", "choices": choices, "usage": usage})
		if err == nil {
			fmt.Fprintf(w, "data: %s\n\n", data)
		}
	}
	chunk([]any{map[string]any{"index": 0, "delta": message, "finish_reason": nil}}, nil)
	chunk([]any{map[string]any{"index": 0, "delta": map[string]any{}, "finish_reason": "stop"}}, nil)
	chunk([]any{}, usage)
	fmt.Fprint(w, "data: [DONE]\n\n")
}

// tell gives the figures. Asked with POST it forgets how many waited at most.
func (s *slow) tell(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = json.NewEncoder(w).Encode(s.figures)
	if r.Method == http.MethodPost {
		s.Most, s.Calls = s.Waiting, 0
	}
}

// model is a slow model in a process of its own.
type model struct {
	url  string
	stop func()
}

// startModel starts one that has a number of calls at once before it answers any; 0 for none.
func startModel(ctx context.Context, takes time.Duration, atOnce int) (*model, error) {
	ctx, cancel := context.WithCancel(ctx)
	cmd := exec.CommandContext(ctx, os.Args[0], "--model", "--takes", takes.String(), "--concurrency", strconv.Itoa(atOnce))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("start the model: %w", err)
	}
	m := &model{stop: func() { cancel(); _ = cmd.Wait() }}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		m.stop()
		return nil, fmt.Errorf("the model says no address: %w", err)
	}
	m.url = strings.TrimSpace(line)
	return m, nil
}

// forget lets the figures begin anew.
func (m *model) forget(ctx context.Context) error {
	_, err := m.ask(ctx, http.MethodPost)
	return err
}

// figures are those since then.
func (m *model) figures(ctx context.Context) (figures, error) { return m.ask(ctx, http.MethodGet) }

func (m *model) ask(ctx context.Context, method string) (f figures, err error) {
	req, err := http.NewRequestWithContext(ctx, method, m.url+"/figures", nil)
	if err != nil {
		return f, err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return f, fmt.Errorf("ask the model for its figures: %w", err)
	}
	defer resp.Body.Close()
	return f, json.NewDecoder(resp.Body).Decode(&f)
}
