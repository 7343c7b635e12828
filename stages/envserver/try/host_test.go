package try

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// hosted is an environment that plays whole rollouts itself.
type hosted struct {
	*adding
	run func(ctx context.Context, job env.Job) (env.Outcome, error)
}

func (hosted) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	return env.Hosted{}.Start(ctx, task, seed)
}

func (h hosted) Run(ctx context.Context, job env.Job) (env.Outcome, error) { return h.run(ctx, job) }

// A host is given the server itself, with the key and the variable it is in, and what it tells is printed.
func TestHost(t *testing.T) {
	t.Setenv("TRY_HOST_KEY", "secret")
	s := serveOpenAI(t, func(request) any { return "11" })
	h := hosted{newAdding(), func(ctx context.Context, job env.Job) (env.Outcome, error) {
		switch job.Index {
		case 1:
			panic("a host too many")
		case 2:
			return env.Outcome{}, errors.New("it broke")
		}
		m := job.Model
		if m.BaseURL != s.URL+"/v1" || m.Model != "tester" || m.Key != "secret" || m.KeyVar != "TRY_HOST_KEY" || m.MaxTokens != 77 || m.MaxContext != 99 || m.TopP != 1 {
			t.Errorf("%+v", m)
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, m.BaseURL+"/chat/completions", strings.NewReader(`{"model":"tester","messages":[{"role":"system","content":"Add."},{"role":"user","content":"0 + 10"}]}`))
		if err != nil {
			return env.Outcome{}, err
		}
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			return env.Outcome{}, err
		}
		resp.Body.Close()
		return env.Outcome{
			Score: env.Score{Rewards: env.Rewards{"right": env.Value(1)}, Stop: "answered"}, Truncated: true,
			Info: json.RawMessage(`{"id":"abc"}`), Messages: []env.Message{env.User("0 + 10"), env.Assistant("10")},
		}, nil
	}}
	r := tries(t, h, s.URL, 3)
	r.Server.TokenEnv, r.Sampling.MaxTokens, r.Sampling.MaxRolloutTokens = "TRY_HOST_KEY", 77, 99
	results, summary, err := do(t, r)
	if err == nil || len(results) != 3 {
		t.Fatalf("%d results, %v", len(results), err)
	}
	if res := results[0]; *res.Reward != 1 || res.Replies != 1 || len(res.Messages) != 2 || string(res.Info) != `{"id":"abc"}` || !res.Truncated || res.StopReason != "answered" {
		t.Errorf("%+v", res)
	}
	if res := results[1]; res.Error == nil || res.Error.Type != faultEnvironment || !strings.Contains(res.Error.Message, "panicked: a host too many") || res.Error.Traceback == "" {
		t.Errorf("%+v", res.Error)
	}
	if res := results[2]; res.Reward != nil || res.Error == nil || !strings.Contains(res.Error.Message, "it broke") {
		t.Errorf("%+v", res)
	}
	if !shows(summary, "1 scored, 2 failed") {
		t.Error(summary)
	}
}

// A host that does not end is given up at the end of the rollout's time, and is told.
func TestHostHangs(t *testing.T) {
	s := serveOpenAI(t, func(request) any { return "11" })
	h := hosted{newAdding(), func(ctx context.Context, _ env.Job) (env.Outcome, error) {
		<-ctx.Done()
		return env.Outcome{}, ctx.Err()
	}}
	r := tries(t, h, s.URL, 1)
	r.Limits.Rollout, r.Limits.Env = 20*time.Millisecond, 10*time.Millisecond
	results, _, _ := do(t, r)
	if res := results[0]; res.Error == nil || !strings.Contains(res.Error.Message, "has not ended in 10ms") {
		t.Errorf("%+v", res.Error)
	}
}

// Nobody can play a host by hand, and it says so.
func TestHostCannotBePlayed(t *testing.T) {
	h := hosted{newAdding(), nil}
	var out strings.Builder
	err := Play{Env: h, Tasks: Tasks{Split: env.Train}, EnvTimeout: time.Minute}.Run(t.Context(), strings.NewReader(""), &out)
	if !errors.Is(err, env.ErrHosted) || !strings.Contains(err.Error(), "--try N --url") {
		t.Error(err)
	}
}
