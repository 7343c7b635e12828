package try

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Rollouts of a model that adds with the tool, wraps round the split, and is wrong in one task.
func TestRun(t *testing.T) {
	s := serveOpenAI(t, func(r request) any {
		switch {
		case r.a == 2:
			return "no idea"
		case r.turn == 0:
			return json.RawMessage(`{"choices":[{"finish_reason":"tool_calls","message":{"content":null,"reasoning_content":"let me see","tool_calls":[
				{"id":"x1","type":"function","function":{"name":"Add","arguments":"{\"a\":1,\"b\":2}"}},
				{"type":"function","function":{"name":"Negate","arguments":{"n":4}}}]}}],"usage":{"prompt_tokens":20,"completion_tokens":9,"total_tokens":29}}`)
		}
		if got := r.raw; !strings.Contains(got, `{"role":"assistant","content":null,"tool_calls":[{"id":"x1","type":"function","function":{"name":"Add","arguments":"{\"a\":1,\"b\":2}"}}`) ||
			!strings.Contains(got, `{"role":"tool","content":"3","tool_call_id":"x1"},{"role":"tool","content":"-4","tool_call_id":"call_0_1"}`) {
			t.Errorf("the second request is %s", got)
		}
		return fmt.Sprint(r.a + r.b)
	})
	e := newAdding()
	r := tries(t, e, s.URL, 7)
	r.Tasks = Tasks{Split: env.Train, First: 1, Seed: 100}
	r.Sampling = Sampling{Temperature: 0.5, MaxTokens: 77, Seed: &r.Tasks.Seed}
	results, summary, err := do(t, r)
	if err != nil {
		t.Fatal(err)
	}
	if len(results) != 7 || e.closed != 7 {
		t.Fatalf("%d results, %d closed", len(results), e.closed)
	}
	for i, res := range results {
		want := 1.5
		if res.TaskIndex == 2 {
			want = 0
		}
		if res.TaskIndex != (1+i)%5 || res.Seed != 100+int64(i) || res.Reward == nil || *res.Reward != want || res.StopReason != "answered" || res.Truncated || res.Error != nil {
			t.Errorf("rollout %d: %+v", i, res)
		}
		if tool := res.Rewards["tool"]; (tool == nil) != (want == 0) || len(res.Rewards) != 2 {
			t.Errorf("rollout %d: rewards %v", i, res.Rewards)
		}
		if want == 0 {
			continue
		}
		if m := res.Messages; len(m) != 6 || m[2].Reasoning != "let me see" || len(m[2].ToolCalls) != 2 || m[5].Content != fmt.Sprint(res.TaskIndex+10) || res.Replies != 2 || res.PromptTokens != 30 || res.CompletionTokens != 12 {
			t.Errorf("rollout %d: %+v", i, res)
		}
	}
	// Tasks 1 2 3 4 0 1 2: five of seven are right.
	for _, want := range []string{"7 rollouts: 7 scored, 0 failed", "reward             1.0714 ± 0.2766", "right            0.7143 ± 0.1844      7\n", "tool             1.0000 ± 0.0000      5  × 0.5",
		"added              0.7143 ± 0.1844      7  metric", "answered 7; truncated 0 of 7", "170 prompt, 66 completion", "random 0.1250", "by tester at", "7 of 7 rollouts, mean reward 1.071"} {
		if !shows(summary, want) {
			t.Errorf("%q is missing in\n%s", want, summary)
		}
	}
	for _, q := range s.requests() {
		if q.Model != "tester" || q.Temperature != 0.5 || q.MaxTokens != 77 || q.Seed == nil || len(q.Tools) != 3 || q.Tools[0].Function.Description != "Add numbers." {
			t.Fatalf("a request is %s", q.raw)
		}
	}
	if s.most > 4 {
		t.Errorf("%d requests at once, want 4 at most", s.most)
	}
}

// shows reports whether a text has another, whatever the space between words.
func shows(text, want string) bool {
	return strings.Contains(strings.Join(strings.Fields(text), " "), strings.Join(strings.Fields(want), " "))
}

// Settings that are not set are not sent.
func TestRequestIsSmall(t *testing.T) {
	s := serveOpenAI(t, func(request) any { return "10" })
	r := tries(t, newAdding(), s.URL, 1)
	r.Server.Model = "named"
	if _, _, err := do(t, r); err != nil {
		t.Fatal(err)
	}
	raw := s.requests()[0].raw
	for _, not := range []string{"seed\"", "max_tokens", "stream", "tool_choice"} {
		if strings.Contains(raw, not) {
			t.Errorf("%s in %s", not, raw)
		}
	}
	if !strings.Contains(raw, `"model":"named"`) {
		t.Errorf("a request is %s", raw)
	}
}

// As text, for people.
func TestRunText(t *testing.T) {
	s := serveOpenAI(t, func(r request) any { return strings.Repeat("word ", 300) })
	r := tries(t, newAdding(), s.URL, 1)
	r.JSON = false
	var out, side strings.Builder
	if err := r.Do(t.Context(), &out, &side); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"1 of 1: rollout 0, task 0 of train, seed 0", `task       {"a":0,"b":10}`, "user       0 + 10", "assistant  word word", "… (1500 characters)",
		"reward     0 = right 0 + tool none × 0.5; ended: answered; 1 replies", "1 rollouts: 1 scored", "reward             0.0000 "} {
		if !shows(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

// What fails has no reward and counts in no mean; what passes is tried again.
func TestRunFaults(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer func(r request) any // of task 1; the others are right
		change func(*Run, *adding)
		kind   string // of the failure; empty for none
		want   string // in its message
		stop   string // where it did not fail
		asked  int    // requests for task 1
	}{
		"an error at the server": {answer: func(request) any { return httpError{status: 500, body: "oh dear"} }, kind: faultModel, want: "try 4 of 4: HTTP 500: oh dear", asked: 4},
		"a refused request": {answer: func(request) any {
			return httpError{status: 400, body: `{"error":{"message":"no such thing","code":"invalid_request_error"}}`}
		}, kind: faultModel, want: "HTTP 400: invalid_request_error: no such thing", asked: 1},
		"too long at once": {answer: func(request) any {
			return httpError{status: 400, body: `{"error":{"message":"maximum context length is 5"}}`}
		}, kind: faultModel, want: "context length", asked: 1},
		"no chat completion": {answer: func(request) any { return json.RawMessage(`{"hello":1}`) }, kind: faultModel, want: "it has no choices", asked: 1},
		"no JSON":            {answer: func(request) any { return json.RawMessage(`<html>`) }, kind: faultModel, want: "no chat completion", asked: 1},
		"a slow try": {answer: func(request) any { return nil }, change: func(r *Run, _ *adding) { r.Limits.Request, r.Limits.Retries = 50*time.Millisecond, 1 },
			kind: faultModel, want: "no answer in 50ms", asked: 2},
		"time over later": {answer: func(r request) any {
			if r.turn == 0 {
				return "hm"
			}
			return nil
		}, change: func(r *Run, _ *adding) { r.Limits.Rollout = 3 * time.Second }, stop: stopDeadline, asked: 2},
		"too long later": {answer: func(r request) any {
			if r.turn == 0 {
				return "hm"
			}
			return httpError{status: 400, body: `{"error":{"message":"x","code":"context_length_exceeded"}}`}
		}, stop: stopMaxTokens, asked: 2},
		"a cut answer": {answer: func(request) any {
			return json.RawMessage(`{"choices":[{"finish_reason":"length","message":{"content":"hm"}}]}`)
		}, stop: stopMaxTokens, asked: 1},
		"tokens of the rollout": {answer: func(request) any { return "hm" }, change: func(r *Run, _ *adding) { r.Sampling.MaxRolloutTokens = 13 }, stop: stopMaxTokens, asked: 1},
		"turns":                 {answer: func(request) any { return "hm" }, stop: "max_turns", asked: 4},
		"a panic":               {answer: func(request) any { return "11" }, change: func(_ *Run, e *adding) { e.panics = 1 }, kind: faultEnvironment, want: "a sum too many", asked: 1},
		"a panic of the tasks":  {change: func(_ *Run, e *adding) { e.lacks = 1 }, kind: faultEnvironment, want: "a task too many"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var asked atomic.Int32
			s := serveOpenAI(t, func(r request) any {
				if r.a != 1 {
					return fmt.Sprint(r.a + r.b)
				}
				asked.Add(1)
				return c.answer(r)
			})
			e := newAdding()
			r := tries(t, e, s.URL, 3)
			if c.change != nil {
				c.change(r, e)
			}
			results, summary, err := do(t, r)
			if len(results) != 3 || int(asked.Load()) != c.asked {
				t.Fatalf("%d results, %d requests, error %v", len(results), asked.Load(), err)
			}
			res := results[1]
			if c.kind == "" {
				if err != nil || res.Error != nil || res.Reward == nil || *res.Reward != 0 || res.StopReason != c.stop || !res.Truncated || !strings.Contains(summary, "truncated 1 of 3") {
					t.Errorf("%+v, error %v, in\n%s", res, err, summary)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "1 of 3 rollouts failed") || res.Error == nil || res.Error.Type != c.kind || !strings.Contains(res.Error.Message, c.want) {
				t.Fatalf("%+v, error %v", res.Error, err)
			}
			if res.Reward != nil || res.Rewards != nil || (res.Error.Traceback != "") != strings.HasPrefix(name, "a panic") {
				t.Errorf("%+v", res)
			}
			for _, want := range []string{"2 scored, 1 failed", "reward             1.0000 ± 0.0000      2\n", "ended answered 2; truncated 0 of 2", "FAILED             rollout 1, task 1 of train, seed 1: " + c.kind} {
				if !shows(summary, want) {
					t.Errorf("%q is missing in\n%s", want, summary)
				}
			}
		})
	}
}

// A model that has not spoken at all when the time is over has failed.
func TestNoAnswer(t *testing.T) {
	s := serveOpenAI(t, func(request) any { return nil })
	r := tries(t, newAdding(), s.URL, 1)
	r.Limits.Rollout = 50 * time.Millisecond
	results, _, err := do(t, r)
	if res := results[0]; err == nil || res.Reward != nil || res.Error == nil || res.Error.Type != faultModel || !strings.Contains(res.Error.Message, errDeadline.Error()) {
		t.Errorf("%+v, error %v", res, err)
	}
}

// A server that is busy is asked again, no sooner than it says.
func TestRetryAfter(t *testing.T) {
	var first time.Time
	s := serveOpenAI(t, func(request) any {
		switch {
		case first.IsZero():
			first = time.Now()
			return httpError{status: 429, after: "1"}
		case time.Since(first) < time.Second:
			t.Error("it was asked too soon")
		}
		return "10"
	})
	results, _, err := do(t, tries(t, newAdding(), s.URL, 1))
	if err != nil || *results[0].Reward != 1 || len(s.requests()) != 2 {
		t.Errorf("%+v, %d requests, error %v", results[0], len(s.requests()), err)
	}
}

// Where every request is refused the same way, one is enough.
func TestHopeless(t *testing.T) {
	for status, want := range map[int]string{401: "--token-file", 404: "--model", 308: "give that place as --url"} {
		s := serveOpenAI(t, func(request) any { return httpError{status: status, body: "go away"} })
		r := tries(t, newAdding(), s.URL, 500)
		r.Parallel = 1
		_, _, err := do(t, r)
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "go away") || len(s.requests()) > 3 {
			t.Errorf("HTTP %d: error %v after %d requests", status, err, len(s.requests()))
		}
	}
}

// One answer is enough for an environment that ends a reply with its first call.
func TestOneCall(t *testing.T) {
	s := serveOpenAI(t, func(r request) any {
		if r.turn == 0 {
			return json.RawMessage(`{"choices":[{"message":{"content":"","tool_calls":[{"id":"1","function":{"name":"Negate","arguments":"{\"n\":1}"}},{"id":"2","function":{"name":"Negate","arguments":"{\"n\":2}"}}]}}]}`)
		}
		return "10"
	})
	e := newAdding()
	e.info.OneCall = true
	results, _, err := do(t, tries(t, e, s.URL, 1))
	if m := results[0].Messages; err != nil || len(m) != 5 || len(m[2].ToolCalls) != 1 || m[3].Content != "-1" {
		t.Errorf("%+v, error %v", m, err)
	}
}

// An environment that heeds no deadline costs its own rollouts, and ends nothing else.
func TestBlockedEnvironment(t *testing.T) {
	t.Parallel()
	s := serveOpenAI(t, func(request) any { return "10" })
	e := newAdding()
	e.blocks = make(chan struct{})
	t.Cleanup(func() { close(e.blocks) })
	r := tries(t, e, s.URL, 2)
	r.Limits.Rollout, r.Limits.Env = 10*time.Millisecond, 10*time.Millisecond
	results, _, err := do(t, r)
	if err == nil || len(results) != 2 || results[1].Error == nil || !strings.Contains(results[1].Error.Message, "has not returned") || results[1].TaskIndex != 1 {
		t.Errorf("%+v, error %v", results[1], err)
	}
}

// A signal ends it with a summary of what there is.
func TestRunStops(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	s := serveOpenAI(t, func(r request) any {
		if r.a == 0 {
			return "10"
		}
		return nil
	})
	r := tries(t, newAdding(), s.URL, 100)
	var side strings.Builder
	err := r.Do(ctx, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }), &side)
	if err != nil || !strings.Contains(side.String(), "1 rollouts: 1 scored, 0 failed, 99 not played to their end") {
		t.Errorf("error %v, summary\n%s", err, side.String())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// Output that cannot be written is an error.
func TestBrokenOutput(t *testing.T) {
	s := serveOpenAI(t, func(r request) any { return fmt.Sprint(r.a + r.b) })
	err := tries(t, newAdding(), s.URL, 3).Do(t.Context(), writerFunc(func([]byte) (int, error) { return 0, io.ErrClosedPipe }), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "print a rollout") {
		t.Errorf("error %v", err)
	}
}

func TestServer(t *testing.T) {
	dir := t.TempDir()
	file, empty := filepath.Join(dir, "token"), filepath.Join(dir, "empty")
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PRL_TRY_TOKEN", "s3cret")
	for _, c := range []struct {
		server Server
		want   string
	}{
		{Server{URL: "http://localhost:8000"}, "http://localhost:8000/v1"},
		{Server{URL: "http://localhost:8000/"}, "http://localhost:8000/v1"},
		{Server{URL: "http://localhost:8000/v1/"}, "http://localhost:8000/v1"},
		{Server{URL: "https://example.com/api/v1"}, "https://example.com/api/v1"},
		{Server{URL: "https://example.com/v1/chat/completions"}, "https://example.com/v1"},
		{Server{URL: "https://example.com", TokenEnv: "PRL_TRY_TOKEN"}, "https://example.com/v1"},
		{Server{URL: "http://127.0.0.1:1", TokenFile: file}, "http://127.0.0.1:1/v1"},
		{Server{URL: "http://gpu:1", TokenFile: file, Cleartext: true}, "http://gpu:1/v1"},
		{Server{URL: "http://gpu:1", TokenFile: file}, "error: use https"},
		{Server{URL: "localhost:8000"}, "error: such as http://localhost:8000"},
		{Server{URL: "ftp://localhost"}, "error: such as http://localhost:8000"},
		{Server{URL: "https://me:s3cret@example.com"}, "error: has a password in it"},
		{Server{URL: "https://example.com/v1?key=1"}, "error: without ?"},
		{Server{URL: "https://example.com", TokenFile: file, TokenEnv: "PRL_TRY_TOKEN"}, "error: leave one out"},
		{Server{URL: "https://example.com", TokenFile: empty}, "error: is empty"},
		{Server{URL: "https://example.com", TokenFile: filepath.Join(dir, "none")}, "error: no such file"},
		{Server{URL: "https://example.com", TokenEnv: "PRL_TRY_NONE"}, "error: PRL_TRY_NONE is not set"},
	} {
		got, err := c.server.base()
		if want, wrong := strings.CutPrefix(c.want, "error: "); wrong {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") {
				t.Errorf("%+v: error %v, want %q", c.server, err, want)
			}
		} else if err != nil || got != c.want {
			t.Errorf("%+v: %q, %v, want %q", c.server, got, err, c.want)
		}
	}
	s := serveOpenAI(t, func(request) any { return "10" })
	r := tries(t, newAdding(), s.URL, 1)
	r.Server.TokenFile = file
	if _, _, err := do(t, r); err != nil || s.requests()[0].header.Get("Authorization") != "Bearer s3cret" {
		t.Errorf("error %v, header %v", err, s.requests()[0].header)
	}
}

func TestModelNames(t *testing.T) {
	for list, want := range map[string]string{`{"data":[]}`: "has 0 models", `{"data":[{"id":"a"},{"id":"b"}]}`: "--model names one of a, b", `nonsense`: "no list of models"} {
		r := tries(t, newAdding(), "", 1)
		s := serveOpenAI(t, nil)
		s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, list) })
		r.Server.URL = s.URL
		if _, _, err := do(t, r); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v", list, err)
		}
	}
}

func TestFigure(t *testing.T) {
	for want, values := range map[string][]float64{"none": nil, "2.0000": {2}, "2.0000 ± 1.0000": {1, 3}, "0.5000 ± 0.2887": {0, 0, 1, 1}} {
		if f := newFigure(values); f.String() != want || f.n != len(values) || math.IsNaN(f.stderr) {
			t.Errorf("%v: %v, want %s", values, f, want)
		}
	}
}
