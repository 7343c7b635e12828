package verifiers

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs/wordle"
	"github.com/prl-project/prl/stages/envserver/serve"
	"github.com/prl-project/prl/stages/envserver/try"
	"github.com/prl-project/prl/stages/inference/render"
	"github.com/prl-project/prl/stages/internal/lm"
)

// deadline ends a test that hangs.
const deadline = 2 * time.Minute

func words(t *testing.T) env.Environment {
	t.Helper()
	e, err := wordle.New(wordle.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func renderer(t *testing.T) render.Renderer {
	t.Helper()
	tok, err := lm.NewTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(tok)
	if err != nil {
		t.Fatal(err)
	}
	r, err := render.New(render.Native, data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func usual(t *testing.T, models string) Config {
	t.Helper()
	cfg := Config{Wire: Wire040, Rollouts: 4, Limits: try.Limits{Rollout: deadline, Request: deadline, Retries: 1, Pause: time.Millisecond}, Renderer: renderer(t)}
	if err := cfg.Models.Allow(models + "=PRL_TEST_KEY"); err != nil {
		t.Fatal(err)
	}
	return cfg
}

// start is a server that ends with the test, and its address.
func start(t *testing.T, e env.Environment, cfg Config) (address string, stop func()) {
	t.Helper()
	s, err := New(t.Context(), serve.Served{Env: e, Limit: deadline}, cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-ended:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(deadline):
			t.Error("the server does not stop")
		}
	})
	t.Cleanup(stop)
	return "tcp://" + listener.Addr().String(), stop
}

// models are servers of models in one, by the beginning of the path: ok, fail, full, cut and hang.
type models struct {
	*httptest.Server
	asked chan struct{} // one that hangs has been asked
	left  chan struct{} // and who asked has gone
	mu    sync.Mutex
	seen  []http.Header
}

// guess is what the models say.
const guess = "crane"

func newModels(t *testing.T) *models {
	m := &models{asked: make(chan struct{}, 100), left: make(chan struct{}, 100)}
	r := renderer(t)
	turns := 0
	mux := http.NewServeMux()
	mux.HandleFunc("POST /{mode}/v1/chat/completions", func(w http.ResponseWriter, req *http.Request) {
		var body struct {
			Messages []struct{ Role string }
		}
		if err := json.NewDecoder(req.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		m.mu.Lock()
		m.seen = append(m.seen, req.Header.Clone())
		turns++
		m.mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		finish := "stop"
		switch mode := req.PathValue("mode"); {
		case mode == "fail":
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, `{"error": {"message": "out of order"}}`)
			return
		case mode == "full" && len(body.Messages) > 3:
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"error": {"message": "too much", "code": "context_length_exceeded"}}`)
			return
		case mode == "hang":
			m.asked <- struct{}{}
			<-req.Context().Done()
			m.left <- struct{}{}
			return
		case mode == "cut":
			finish = "length"
		}
		fmt.Fprintf(w, `{"prompt_token_ids": [1, 2, 3], "choices": [{"finish_reason": %q, "message": {"role": "assistant", "content": %q}, "token_ids": [7],
			"logprobs": {"content": [{"token": "crane", "logprob": -0.25}]}}], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}`, finish, guess)
	})
	mux.HandleFunc("POST /{mode}/inference/v1/generate", func(w http.ResponseWriter, req *http.Request) {
		ids := append(r.Encode(guess), r.Stop()[0])
		type logprob struct {
			Token   string  `json:"token"`
			Logprob float64 `json:"logprob"`
		}
		var content []logprob
		for _, id := range ids {
			content = append(content, logprob{fmt.Sprintf("token_id:%d", id), -0.5})
		}
		choice := map[string]any{"index": 0, "token_ids": ids, "finish_reason": "stop", "logprobs": map[string]any{"content": content}}
		_ = json.NewEncoder(w).Encode(map[string]any{"request_id": "1", "choices": []any{choice}})
	})
	m.Server = httptest.NewServer(mux)
	t.Cleanup(m.Close)
	return m
}
