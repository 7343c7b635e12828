package try

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// adding is an environment of sums: the policy is told two numbers, may add with a tool, and answers.
type adding struct {
	info    env.Info
	panics  int           // task whose episode panics at a reply; -1 for none
	lacks   int           // task that panics; -1 for none
	blocks  chan struct{} // an episode waits for it at its start; nil for none
	mu      sync.Mutex
	closed  int
	replies []env.Message // of all episodes
}

func newAdding() *adding {
	return &adding{info: env.Info{Name: "adding", Version: "7", Train: 5, Eval: 2, MaxTurns: 4}, panics: -1, lacks: -1}
}

func (a *adding) Info() env.Info { return a.info }

func (a *adding) Task(split env.Split, i int) (json.RawMessage, error) {
	if err := env.CheckIndex(a.info, split, i); err != nil {
		return nil, err
	}
	if i == a.lacks {
		panic("a task too many")
	}
	return json.Marshal(map[string]int{"a": i, "b": 10})
}

func (a *adding) Start(_ context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	if a.blocks != nil {
		<-a.blocks
	}
	e := &sum{of: a, seed: seed}
	return e, json.Unmarshal(task, &e.task)
}

func (a *adding) Baselines(env.Split) map[string]float64 { return map[string]float64{"random": 0.125} }

type sum struct {
	of     *adding
	task   struct{ A, B int }
	seed   int64
	said   string
	added  int
	answer bool
}

func (s *sum) Prompt() []env.Message {
	return []env.Message{env.System("Add."), env.User(fmt.Sprintf("%d + %d, seed %d", s.task.A, s.task.B, s.seed))}
}

func (s *sum) Reply(ctx context.Context, m env.Message) (env.Turn, error) {
	s.of.mu.Lock()
	s.of.replies = append(s.of.replies, m)
	s.of.mu.Unlock()
	if s.task.A == s.of.panics {
		panic("a sum too many")
	}
	if m.Content == "hm" {
		return env.Turn{Messages: []env.Message{env.User("well?")}}, nil
	}
	s.said, s.answer = m.Content, true
	return env.Turn{Done: true}, nil
}

type AddArgs struct {
	_    struct{} `tool:"Add numbers."`
	A    int      `json:"a" jsonschema:"the first"`
	B    int      `json:"b"`
	Note string   `json:"note,omitempty"`
}

func (s *sum) Add(_ context.Context, args AddArgs) (string, error) {
	s.added++
	return fmt.Sprintf("%d%s", args.A+args.B, args.Note), nil
}

type NegateArgs struct {
	N int `json:"n"`
}

func (s *sum) Negate(_ context.Context, args NegateArgs) (string, error) {
	return fmt.Sprint(-args.N), nil
}

type ShoutArgs struct {
	Text string `json:"text"`
}

func (s *sum) Shout(_ context.Context, args ShoutArgs) (string, error) {
	return strings.ToUpper(args.Text) + "!", nil
}

func (s *sum) Score(context.Context) (env.Score, error) {
	right := env.Bool(s.said == fmt.Sprint(s.task.A+s.task.B))
	score := env.Score{Rewards: env.Rewards{"right": env.Value(right), "tool": env.NotApplicable(0.5)}, Metrics: map[string]float64{"added": float64(s.added)}}
	if s.added > 0 {
		score.Rewards["tool"] = env.Weighted(1, 0.5)
	}
	if s.answer {
		score.Stop = "answered"
	}
	return score, nil
}

func (s *sum) Close() error {
	s.of.mu.Lock()
	s.of.closed++
	s.of.mu.Unlock()
	return nil
}

// A request is one that the scripted server got, with what it was for: the numbers of the task, and how often was answered.
type request struct {
	chatRequest
	a, b, turn int
	header     http.Header
	raw        string
}

// an openAI answers chat completions as told; a string is a text, else it is a whole reply or an httpError.
type openAI struct {
	*httptest.Server
	mu     sync.Mutex
	asked  []request
	most   int // requests at once
	inside int
}

func (s *openAI) requests() []request {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.asked)
}

type httpError struct {
	status int
	after  string
	body   string
}

func serveOpenAI(t *testing.T, answer func(r request) any) *openAI {
	t.Helper()
	s := &openAI{}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/models", func(w http.ResponseWriter, _ *http.Request) {
		io.WriteString(w, `{"data":[{"id":"tester"}]}`)
	})
	mux.HandleFunc("POST /v1/chat/completions", func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		req := request{header: r.Header, raw: string(body)}
		if err == nil {
			err = json.Unmarshal(body, &req.chatRequest)
		}
		if err != nil || len(req.Messages) < 2 {
			t.Errorf("request %s: %v", body, err)
			return
		}
		fmt.Sscanf(fmt.Sprint(req.Messages[1].Content), "%d + %d", &req.a, &req.b)
		for _, m := range req.Messages {
			if m.Role == "assistant" {
				req.turn++
			}
		}
		s.mu.Lock()
		s.asked = append(s.asked, req)
		s.inside++
		s.most = max(s.most, s.inside)
		s.mu.Unlock()
		defer func() { s.mu.Lock(); s.inside--; s.mu.Unlock() }()
		switch a := answer(req).(type) {
		case string:
			json.NewEncoder(w).Encode(map[string]any{
				"choices": []any{map[string]any{"finish_reason": "stop", "message": map[string]any{"role": "assistant", "content": a}}},
				"usage":   map[string]int{"prompt_tokens": 10, "completion_tokens": 3},
			})
		case json.RawMessage:
			w.Write(a)
		case httpError:
			if a.after != "" {
				w.Header().Set("Retry-After", a.after)
			}
			w.WriteHeader(a.status)
			io.WriteString(w, a.body)
		case nil:
			<-r.Context().Done()
		default:
			t.Errorf("answer %v", a)
		}
	})
	s.Server = httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s
}

// tries is a run against a server whose waits are short.
func tries(t *testing.T, e env.Environment, url string, n int) *Run {
	return &Run{
		Env: e, Tasks: Tasks{Split: env.Train}, Rollouts: n, Parallel: 4, Server: Server{URL: url}, Sampling: Sampling{Temperature: 1},
		Limits: Limits{Rollout: time.Minute, Env: time.Minute, Retries: 3, Pause: time.Millisecond},
		JSON:   true, Log: slog.New(slog.NewTextHandler(t.Output(), nil)),
	}
}

// do runs it and gives the results by number, and the summary.
func do(t *testing.T, r *Run) (results map[int]Result, summary string, err error) {
	t.Helper()
	var out, side strings.Builder
	err = r.Do(t.Context(), &out, &side)
	results = map[int]Result{}
	d := json.NewDecoder(strings.NewReader(out.String()))
	for {
		var res Result
		if err := d.Decode(&res); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, out.String())
		}
		results[res.Rollout] = res
	}
	return results, side.String(), err
}
