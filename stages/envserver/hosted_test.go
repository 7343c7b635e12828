package envserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// A conversation that a host holds over HTTP leaves the same trace as that of an episode, streamed or not: nodes with all
// their tensors, requests to the model with their seeds, rewards.
func TestHostPlaysAsAnEpisodeDoes(t *testing.T) {
	call := "<tool_call>\n{\"name\": \"Add\", \"arguments\": {\"a\": 2, \"b\": 3}}\n</tool_call>"
	for _, c := range []struct {
		name  string
		env   func() env.Environment
		says  []string
		limit func(*schemas.Task)
	}{
		{"turns", func() env.Environment { return &game{info: env.Info{MaxTurns: 3}, reply: goOn} }, []string{"one<|im_end|>", "two<|im_end|>", "three<|im_end|>"}, nil},
		{"tools and reasoning", func() env.Environment { return &calculator{game{info: env.Info{MaxTurns: 5}, reply: goOn}} },
			[]string{"<think>\nhm\n</think>\n\nlet me\n" + call + "<|im_end|>", "what?<|im_end|>", call + "\n" + call + "<|im_end|>"}, nil},
		{"one call", func() env.Environment {
			return &calculator{game{info: env.Info{MaxTurns: 5, OneCall: true}, reply: goOn}}
		}, []string{call + call + "<|im_end|>"}, nil},
		{"a system message", func() env.Environment {
			return &game{prompt: []env.Message{env.System("be brief"), env.User("go")}}
		}, []string{"yes<|im_end|>"}, nil},
		{"spaces around", func() env.Environment { return &game{info: env.Info{MaxTurns: 2}, reply: goOn} }, []string{" \n one \n<|im_end|>", "two<|im_end|>"}, nil},
		{"cut", func() env.Environment { return &game{info: env.Info{MaxTurns: 3}, reply: goOn} }, []string{"one<|im_end|>", "far too long<|im_end|>"}, func(task *schemas.Task) { task.MaxTokens = 5 }},
		{"full", func() env.Environment { return &game{info: env.Info{MaxTurns: 30}, reply: goOn} }, []string{"one<|im_end|>"}, func(task *schemas.Task) { task.MaxRolloutTokens = 170 }},
	} {
		for _, streamed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, streamed %v", c.name, streamed), func(t *testing.T) {
				r := qwen3(t)
				task := testTask()
				task.MaxTokens, task.MaxRolloutTokens = 500, 10_000
				if c.limit != nil {
					c.limit(task)
				}
				one, two := tells(r, c.says...), hears(tells(r, c.says...))
				p := testPlayer(t, c.env(), one)
				p.renderer = r
				want := playOne(t, p, task)
				scored(t, want)
				p = hostPlayer(t, overHTTP(c.env(), map[string]any{"stream": streamed}), two)
				p.renderer = r
				got := playOne(t, p, task)
				scored(t, got)
				exact(t, got, two.made)
				if !reflect.DeepEqual(seenNodes(got.Nodes), seenNodes(want.Nodes)) {
					t.Errorf("nodes\n%+v, want\n%+v", seenNodes(got.Nodes), seenNodes(want.Nodes))
				}
				if !reflect.DeepEqual(two.requests, one.requests) {
					t.Errorf("requests\n%+v, want\n%+v", two.requests, one.requests)
				}
				if !reflect.DeepEqual(got.Rewards, want.Rewards) || *got.PolicyStart != *want.PolicyStart || *got.PolicyEnd != *want.PolicyEnd ||
					got.Truncated != want.Truncated || got.StopReason != want.StopReason {
					t.Errorf("%v %v %q, want %v %v %q", got.Rewards, got.Truncated, got.StopReason, want.Rewards, want.Truncated, want.StopReason)
				}
			})
		}
	}
}

// Sub-agents that a host asks at the same time have branches of their own; what all of them are told first is there once.
func TestParallelConversations(t *testing.T) {
	const agents, turns = 12, 4
	r := qwen3(t)
	m := hears(tells(r, "some words<|im_end|>"))
	system := map[string]any{"role": "system", "content": "you are one of many"}
	trace := playHost(t, hosting(agents*turns, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		var wg sync.WaitGroup
		errs := make([]error, agents)
		for i := range agents {
			wg.Go(func() {
				history := []any{system, user(fmt.Sprintf("agent %d", i/2))} // two of them say the same
				for range turns {
					a, err := chat(ctx, job, history, nil)
					if err != nil {
						errs[i] = err
						return
					}
					history = append(history, a.again(), user(fmt.Sprintf("go on, %d", i)))
				}
			})
		}
		wg.Wait()
		out, _ := won()
		return out, errors.Join(errs...)
	}), m, nil)
	scored(t, trace)
	exact(t, trace, m.made)
	roots := 0
	for _, n := range trace.Nodes {
		if n.Parent < 0 {
			roots++
		}
	}
	if paths := branches(trace.Nodes); roots != 1 || len(paths) != agents || len(m.made) != agents*turns {
		t.Fatalf("%d roots, %d branches, %d calls", roots, len(paths), len(m.made))
	}
	seeds := map[int64]bool{}
	for _, r := range m.requests {
		seeds[r.Seed] = true
	}
	if len(seeds) != agents*turns {
		t.Fatalf("%d seeds of %d calls", len(seeds), agents*turns)
	}
}

// A history that was rewritten is a branch of its own, and what was sampled before stays in its place.
func TestRewrittenHistory(t *testing.T) {
	r := qwen3(t)
	m := hears(tells(r, "first<|im_end|>", "second<|im_end|>", "third<|im_end|>", "fourth<|im_end|>", "fifth<|im_end|>"))
	trace := playHost(t, hosting(9, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		ask := func(history ...any) said {
			a, err := chat(ctx, job, history, nil)
			if err != nil {
				t.Error(err)
			}
			return a
		}
		one := ask(user("go"))
		two := ask(user("go"), one.again(), user("on"))
		ask(user("go"), one.again(), user("off"))                                         // another way from the first answer on
		ask(user("go"), said{Content: "never said"}.again(), user("on"))                  // words put into its mouth
		ask(user("go"), one.again(), user("on"), said{Content: "2"}.again(), user("end")) // goes on from the first answer
		_ = two
		return won()
	}), m, nil)
	scored(t, trace)
	exact(t, trace, m.made)
	if paths := branches(trace.Nodes); len(paths) != 4 {
		t.Fatalf("%d branches: %s", len(paths), contents(trace))
	}
	if got := contents(trace); got != "user:go|assistant:first|user:on|assistant:second|user:off|assistant:third|assistant:never said|user:on|assistant:fourth|assistant:2|user:end|assistant:fifth" {
		t.Fatal(got)
	}
}

// Whatever a host asks, in whatever order: every answer is in the trace once, behind exactly the tokens the model saw, also
// where the server says that it saw others, or the host has tokens of its own.
func TestHostTokenExactness(t *testing.T) {
	r := qwen3(t)
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		var mu sync.Mutex
		m := hears(&model{answer: func(_ context.Context, call int, q inference.Request) (inference.Completion, error) {
			mu.Lock()
			defer mu.Unlock()
			c := inference.Completion{FinishReason: inference.FinishLength, Versions: []schemas.VersionRun{{Version: int64(call / 3)}}}
			for range 1 + rng.IntN(6) {
				c.Tokens = append(c.Tokens, rng.Int32N(264))
				if slices.Contains(q.StopTokens, c.Tokens[len(c.Tokens)-1]) {
					c.FinishReason = inference.FinishStop
					break
				}
			}
			c.Logprobs = slices.Repeat([]float32{-rng.Float32()}, len(c.Tokens))
			if rng.IntN(8) == 0 {
				c.Prompt = slices.Concat(q.Tokens[:rng.IntN(len(q.Tokens))], []int32{rng.Int32N(256)})
			}
			return c, nil
		}})
		trace := playHost(t, hosting(40, func(ctx context.Context, job env.Job) (env.Outcome, error) {
			histories := [][]any{{user("a")}, {user("a"), user("b")}}
			var tokens [][]int32
			for i := range 20 {
				if rng.IntN(4) == 0 {
					prompt := r.Encode("<|im_start|>user\nx<|im_end|>\n<|im_start|>assistant\n")
					if len(tokens) > 0 && rng.IntN(4) > 0 {
						prompt = append(slices.Clone(tokens[rng.IntN(len(tokens))]), r.Encode("<|im_end|>\nmore")...)
					}
					out, err := generate(ctx, job, prompt)
					if err != nil {
						return env.Outcome{}, err
					}
					tokens = append(tokens, append(prompt, out...))
					continue
				}
				at := rng.IntN(len(histories))
				history := slices.Clone(histories[at])
				if rng.IntN(5) == 0 {
					history[rng.IntN(len(history))] = user("rewritten")
				}
				a, err := chat(ctx, job, history, map[string]any{"stream": rng.IntN(2) == 0})
				if err != nil {
					return env.Outcome{}, fmt.Errorf("call %d: %w", i, err)
				}
				history = append(history, a.again(), user(fmt.Sprint(rng.IntN(2))))
				if histories = append(histories, history); rng.IntN(2) == 0 {
					histories[at] = history
				}
				tokens = append(tokens, append(a.Prompt, a.Tokens...))
			}
			return won()
		}), m, nil)
		scored(t, trace)
		exact(t, trace, m.made)
	}
}

// generate asks for a continuation of tokens.
func generate(ctx context.Context, job env.Job, tokens []int32) ([]int32, error) {
	data, err := post(ctx, strings.TrimSuffix(job.Model.BaseURL, "/v1")+"/inference/v1/generate", map[string]any{
		"model": job.Model.Model, "token_ids": tokens,
		"sampling_params": map[string]any{"temperature": job.Model.Temperature, "max_tokens": job.Model.MaxTokens, "logprobs": 1, "skip_special_tokens": false},
	})
	if err != nil {
		return nil, err
	}
	var reply struct {
		Choices []struct {
			TokenIDs []int32 `json:"token_ids"`
			Logprobs struct {
				Content []struct {
					Token   string
					Logprob float64
				}
			}
		}
	}
	if err := json.Unmarshal(data, &reply); err != nil {
		return nil, err
	}
	c := reply.Choices[0]
	for i, l := range c.Logprobs.Content {
		if l.Token != fmt.Sprintf("token_id:%d", c.TokenIDs[i]) {
			return nil, fmt.Errorf("log-probability %d is of %q", i, l.Token)
		}
	}
	if len(c.Logprobs.Content) != len(c.TokenIDs) {
		return nil, fmt.Errorf("%d log-probabilities of %d tokens", len(c.Logprobs.Content), len(c.TokenIDs))
	}
	return c.TokenIDs, nil
}

// A host that has tokens of its own is given tokens; those of its next prompt that were sampled stay sampled ones.
func TestHostWithTokens(t *testing.T) {
	r := qwen3(t)
	m := hears(tells(r, "first<|im_end|>", "second<|im_end|>"))
	var models, one string
	trace := playHost(t, hosting(2, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		prompt := r.Encode("<|im_start|>user\ngo<|im_end|>\n<|im_start|>assistant\n")
		models, one = get(t, job.Model.BaseURL+"/models"), get(t, job.Model.BaseURL+"/models/"+job.Model.Model)
		first, err := generate(ctx, job, prompt)
		if err != nil {
			return env.Outcome{}, err
		}
		second, err := generate(ctx, job, slices.Concat(prompt, first, r.Encode("\n<|im_start|>user\non<|im_end|>\n<|im_start|>assistant\n")))
		if err != nil {
			return env.Outcome{}, err
		}
		out, _ := won()
		out.Replies = [][]int32{second, first}
		return out, nil
	}), m, nil)
	scored(t, trace)
	exact(t, trace, m.made)
	if got := contents(trace); got != "user:user\ngo\n|assistant:first|user:\nuser\non\n|assistant:second" {
		t.Fatalf("%q", got)
	}
	if !strings.Contains(models, `"max_model_len":10000`) || !strings.Contains(one, `"id":"policy"`) {
		t.Fatalf("%s %s", models, one)
	}
}

func get(t testing.TB, url string) string {
	t.Helper()
	resp, err := http.Get(url)
	if err != nil {
		t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	var data json.RawMessage
	if err := json.NewDecoder(resp.Body).Decode(&data); err != nil {
		t.Error(err)
	}
	return string(data)
}

// A stop string ends an answer where the host sees it end: what was sampled behind it is not in the trace.
func TestHostStops(t *testing.T) {
	r := qwen3(t)
	m := tells(r, "one. two. three<|im_end|>", "four<|im_end|>")
	var first said
	trace := playHost(t, hosting(2, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		var err error
		if first, err = chat(ctx, job, []any{user("go")}, map[string]any{"stop": []string{" two"}, "stream": true}); err != nil {
			return env.Outcome{}, err
		}
		if _, err = chat(ctx, job, []any{user("go"), first.again(), user("on")}, nil); err != nil {
			return env.Outcome{}, err
		}
		return won()
	}), m, nil)
	scored(t, trace)
	if first.Content != "one." || first.Finish != "stop" || contents(trace) != "user:go|assistant:one.|user:on|assistant:four" {
		t.Fatalf("%+v: %s", first, contents(trace))
	}
	if got := shows(r, trace.Nodes[1].TokenIDs.Values()); got != "<|im_start|>assistant\none. two" {
		t.Fatalf("%q", got)
	}
	equal(t, "the next prompt goes on from there", m.requests[1].Tokens[:len(m.requests[0].Tokens)+8], slices.Concat(m.requests[0].Tokens, r.Encode("one. two")))
}

// Hosts write what they were told in other ways: trimmed, without reasoning, arguments anew, contents in parts.
func TestHistoriesInOtherWords(t *testing.T) {
	r := qwen3(t)
	m := hears(tells(r, "<think>\nhm\n</think>\n\n words \n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1, \"b\": [2]}}\n</tool_call><|im_end|>", "end<|im_end|>"))
	tools := map[string]any{"tools": []any{map[string]any{"type": "function", "function": map[string]any{"name": "f", "parameters": map[string]any{"type": "object"}}}}}
	trace := playHost(t, hosting(2, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		a, err := chat(ctx, job, []any{user("go")}, tools)
		if err != nil {
			return env.Outcome{}, err
		}
		if len(a.ToolCalls) != 1 || a.Reasoning != "hm" || a.Finish != "tool_calls" {
			t.Errorf("%+v", a)
			return won()
		}
		a.Content, a.ToolCalls[0].Function.Arguments = "words", "{\"b\":[2],\n\"a\":1}"
		history := []any{map[string]any{"role": "user", "content": []any{map[string]any{"type": "text", "text": "go"}}}, a.again(),
			map[string]any{"role": "tool", "tool_call_id": a.ToolCalls[0].ID, "content": "3"}}
		if _, err := chat(ctx, job, history, tools); err != nil {
			return env.Outcome{}, err
		}
		return won()
	}), m, nil)
	scored(t, trace)
	exact(t, trace, m.made)
	if paths := branches(trace.Nodes); len(paths) != 1 {
		t.Fatalf("%d branches: %s", len(paths), contents(trace))
	}
}

// What makes a rollout of a host fail, and what truncates it.
func TestHostEnds(t *testing.T) {
	r := qwen3(t)
	hello := func() *model { return tells(r, "hello<|im_end|>") }
	long := func(ctx context.Context, job env.Job, calls int) (int, error) {
		history := []any{user("go")}
		for i := range calls {
			a, err := chat(ctx, job, history, nil)
			if err != nil {
				return i, err
			}
			history = append(history, a.again(), user("on"))
		}
		return calls, nil
	}
	broken := func() *model {
		return &model{answer: func(context.Context, int, inference.Request) (inference.Completion, error) {
			return inference.Completion{}, &inference.Error{Status: 400, Code: inference.CodeInvalid, Message: "no"}
		}}
	}
	silentAfter := func(n int) *model {
		m := hello()
		first := m.answer
		m.answer = func(ctx context.Context, call int, q inference.Request) (inference.Completion, error) {
			if call >= n {
				<-ctx.Done()
				return inference.Completion{}, ctx.Err()
			}
			return first(ctx, call, q)
		}
		return m
	}
	type end struct {
		kind, what string // of a failure
		truncated  bool
		stop       string
		rewarded   bool
		calls      int
	}
	for _, c := range []struct {
		name  string
		turns int
		model *model
		task  func(*schemas.Task)
		run   func(ctx context.Context, job env.Job) (env.Outcome, error)
		want  end
	}{
		{name: "model errors that the host swallows", model: broken(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, err := chat(ctx, job, []any{user("go")}, nil)
			if err == nil || ctx.Err() == nil {
				t.Errorf("the host is told %v", err)
			}
			return won()
		}, want: end{kind: errorModel, what: "try 1 of 3: no", calls: 1}},
		{name: "no call", model: hello(), run: func(context.Context, env.Job) (env.Outcome, error) { return won() },
			want: end{kind: errorEnvironment, what: "without an answer of the policy"}},
		{name: "the host fails", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, err := long(ctx, job, 1)
			return env.Outcome{}, errors.Join(err, errors.New("broken"))
		}, want: end{kind: errorEnvironment, what: "broken", calls: 1}},
		{name: "the host panics", model: hello(), run: func(context.Context, env.Job) (env.Outcome, error) { panic("oh") },
			want: end{kind: errorEnvironment, what: "panicked: oh"}},
		{name: "another temperature", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, err := chat(ctx, job, []any{user("go")}, map[string]any{"temperature": 0.2})
			if err == nil || !strings.Contains(err.Error(), "temperature = 0.2: this rollout is sampled at 0.5") {
				t.Errorf("the host is told %v", err)
			}
			return won()
		}, want: end{kind: errorEnvironment, what: "temperature = 0.2"}},
		{name: "another temperature, then not", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, _ = chat(ctx, job, []any{user("go")}, map[string]any{"top_p": 0.2})
			if _, err := chat(ctx, job, []any{user("go")}, map[string]any{"top_p": 1, "temperature": 0.5, "seed": 4}); err != nil {
				return env.Outcome{}, err
			}
			return won()
		}, want: end{rewarded: true, stop: "won", calls: 1}},
		{name: "penalties", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, err := chat(ctx, job, []any{user("go")}, map[string]any{"presence_penalty": 1})
			return env.Outcome{}, err
		}, want: end{kind: errorEnvironment, what: "presence_penalty"}},
		{name: "penalties, which the host swallows", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			if _, err := long(ctx, job, 1); err != nil {
				return env.Outcome{}, err
			}
			_, _ = chat(ctx, job, []any{user("go")}, map[string]any{"presence_penalty": 1})
			return won()
		}, want: end{kind: errorEnvironment, what: "presence_penalty", calls: 1}},
		{name: "what is no request, then one", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, _ = chat(ctx, job, []any{7}, nil)
			if _, err := long(ctx, job, 1); err != nil {
				return env.Outcome{}, err
			}
			_, _ = http.Get(job.Model.BaseURL + "/models/other")
			return won()
		}, want: end{rewarded: true, stop: "won", calls: 1}},
		{name: "two choices", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, err := chat(ctx, job, []any{user("go")}, map[string]any{"n": 2})
			return env.Outcome{}, err
		}, want: end{kind: errorEnvironment, what: "n = 2"}},
		{name: "another model", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, err := chat(ctx, job, []any{user("go")}, map[string]any{"model": "judge"})
			return env.Outcome{}, err
		}, want: end{kind: errorEnvironment, what: `model "judge" is not served here`}},
		{name: "a first prompt that is too long", model: hello(), task: func(task *schemas.Task) { task.MaxRolloutTokens = 10 }, run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, _ = long(ctx, job, 1)
			return won()
		}, want: end{kind: errorEnvironment, what: "maximum context length is 10 tokens"}},
		{name: "turns", turns: 3, model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			if n, err := long(ctx, job, 9); n != 3 || err.(*refused).code != inference.CodeTooLong || err.(*refused).status != 400 {
				t.Errorf("%v after %d", err, n)
			}
			return won()
		}, want: end{truncated: true, stop: stopMaxTurns, rewarded: true, calls: 3}},
		{name: "tokens", turns: 99, model: hello(), task: func(task *schemas.Task) { task.MaxRolloutTokens = 170 }, run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			if _, err := long(ctx, job, 99); err == nil || !strings.Contains(err.Error(), "maximum context length is 170 tokens") {
				t.Errorf("the host is told %v", err)
			}
			return won()
		}, want: end{truncated: true, stop: stopMaxTokens, rewarded: true, calls: 6}},
		{name: "tokens, then a shorter history", turns: 99, model: hello(), task: func(task *schemas.Task) { task.MaxRolloutTokens = 170 }, run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, _ = long(ctx, job, 99)
			if _, err := long(ctx, job, 1); err != nil {
				return env.Outcome{}, err
			}
			return won()
		}, want: end{rewarded: true, stop: "won", calls: 7}},
		{name: "a limit on which the host fails", turns: 2, model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, err := long(ctx, job, 9)
			return env.Outcome{}, err
		}, want: end{truncated: true, stop: stopMaxTurns, calls: 2}},
		{name: "a limit, and a panic", turns: 1, model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, _ = long(ctx, job, 2)
			panic("oh")
		}, want: end{kind: errorEnvironment, what: "panicked: oh", calls: 1}},
		{name: "a limit, and the host is lost", turns: 1, model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, _ = long(ctx, job, 2)
			return env.Outcome{}, &env.LostError{Err: errors.New("killed")}
		}, want: end{kind: errorEnvironment, what: "killed", calls: 1}},
		{name: "an answer the host has cut", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			if a, err := chat(ctx, job, []any{user("go")}, map[string]any{"max_tokens": 2}); err != nil || a.Content != "he" || a.Finish != "length" {
				t.Errorf("%+v %v", a, err)
			}
			return won()
		}, want: end{rewarded: true, stop: "won", calls: 1}},
		{name: "the host knows of a limit", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			if _, err := long(ctx, job, 1); err != nil {
				return env.Outcome{}, err
			}
			out, _ := won()
			out.Truncated, out.Score.Stop = true, "sandbox_timeout"
			return out, nil
		}, want: end{truncated: true, rewarded: true, stop: "sandbox_timeout", calls: 1}},
		{name: "time", turns: 9, model: silentAfter(1), task: func(task *schemas.Task) { task.TimeoutMs = 300 }, run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			if n, err := long(ctx, job, 2); n != 1 || err.(*refused).code != inference.CodeTooLong {
				t.Errorf("%v after %d", err, n)
			}
			return won()
		}, want: end{truncated: true, rewarded: true, stop: stopDeadline, calls: 2}},
		{name: "time before the first answer", turns: 9, model: silentAfter(0), task: func(task *schemas.Task) { task.TimeoutMs = 100 }, run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, _ = long(ctx, job, 2)
			return won()
		}, want: end{kind: errorModel, what: "time is over", calls: 1}},
		{name: "tokens that nobody sampled", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			if _, err := long(ctx, job, 1); err != nil {
				return env.Outcome{}, err
			}
			out, _ := won()
			out.Replies = [][]int32{{1, 2}}
			return out, nil
		}, want: end{kind: errorEnvironment, what: "none that the policy sampled", calls: 1}},
		{name: "no number", model: hello(), run: func(ctx context.Context, job env.Job) (env.Outcome, error) {
			_, err := long(ctx, job, 1)
			out, _ := won()
			out.Info = json.RawMessage("[1]")
			return out, err
		}, want: end{kind: errorEnvironment, what: "no JSON object", calls: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			trace := playHost(t, hosting(c.turns, c.run), c.model, c.task)
			if len(c.model.requests) != c.want.calls {
				t.Errorf("%d model calls, want %d", len(c.model.requests), c.want.calls)
			}
			if c.want.kind != "" {
				failed(t, trace, c.want.kind, c.want.what)
				return
			}
			if len(trace.Errors) > 0 || trace.Truncated != c.want.truncated || trace.StopReason != c.want.stop || (trace.Reward != nil) != c.want.rewarded {
				t.Fatalf("errors %v, truncated %v, stop %q, reward %v", trace.Errors, trace.Truncated, trace.StopReason, trace.Reward)
			}
			if c.want.truncated && !c.want.rewarded && !strings.Contains(trace.Info, "context_length_exceeded") {
				t.Errorf("info %q does not say why there is no reward", trace.Info)
			}
		})
	}
}

// What a host says when it was told to stop is no score, and no trace of a server that stops.
func TestHostThatWasStoppedHasNoScore(t *testing.T) {
	r := qwen3(t)
	p := hostPlayer(t, hosting(3, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		if _, err := chat(ctx, job, []any{user("go")}, nil); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		<-ctx.Done()
		return env.Outcome{Score: env.Score{Rewards: env.Rewards{"win": env.Value(0)}, Stop: "cancelled"}}, nil
	}), tells(r, "x<|im_end|>"))
	p.renderer = r
	for _, why := range []error{errStopped, errStale, errDecided} {
		ctx, cancel := context.WithCancelCause(t.Context())
		traces := p.play(ctx, testTask(), func(int64) { cancel(why) })
		if why == errStopped {
			if traces != nil {
				t.Errorf("a server that stops has traces: %+v", traces[0])
			}
			continue
		}
		failed(t, traces[0], why.(*failure).kind, why.Error())
	}
	p.envTimeout = 10 * time.Millisecond
	task := testTask()
	task.TimeoutMs = 100
	failed(t, playOne(t, p, task), errorEnvironment, "the rollout has not ended in 10ms")
}

// A call that was on its way when another came to a limit does not lift it.
func TestAnswerBesideALimit(t *testing.T) {
	r := qwen3(t)
	asked, release := make(chan struct{}), make(chan struct{})
	m := tells(r, "x<|im_end|>")
	say := m.answer
	m.answer = func(ctx context.Context, call int, q inference.Request) (inference.Completion, error) {
		close(asked)
		<-release
		return say(ctx, 0, q)
	}
	trace := playHost(t, hosting(1, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		answered := make(chan error, 1)
		go func() {
			_, err := chat(ctx, job, []any{user("a")}, nil)
			answered <- err
		}()
		<-asked
		if _, err := chat(ctx, job, []any{user("b")}, nil); err == nil || err.(*refused).code != inference.CodeTooLong {
			t.Errorf("the host is told %v", err)
		}
		close(release)
		if err := <-answered; err != nil {
			return env.Outcome{}, err
		}
		return won()
	}), m, nil)
	scored(t, trace)
	if !trace.Truncated || trace.StopReason != stopMaxTurns {
		t.Errorf("truncated %v, %q", trace.Truncated, trace.StopReason)
	}
}

// An answer that the host has given up is none, whatever the model makes of it: the host asks again.
func TestAnswerThatWasGivenUp(t *testing.T) {
	r := qwen3(t)
	asked := make(chan struct{})
	m := tells(r, "x<|im_end|>")
	say := m.answer
	m.answer = func(ctx context.Context, call int, q inference.Request) (inference.Completion, error) {
		if call == 0 {
			close(asked)
			<-ctx.Done()
		}
		return say(ctx, 0, q)
	}
	trace := playHost(t, hosting(3, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		impatient, cancel := context.WithCancel(ctx)
		go func() {
			<-asked
			cancel()
		}()
		if _, err := chat(impatient, job, []any{user("go")}, nil); err == nil {
			t.Error("it was answered")
		}
		if _, err := chat(ctx, job, []any{user("go")}, nil); err != nil {
			return env.Outcome{}, err
		}
		return won()
	}), m, nil)
	scored(t, trace)
	if got := contents(trace); got != "user:go|assistant:x" {
		t.Error(got)
	}
}

// A host's task has the bound of any environment's.
func TestHostTaskIsBounded(t *testing.T) {
	p := hostPlayer(t, hosting(1, nil), &model{})
	p.maxBytes = 5
	failed(t, playOne(t, p, testTask()), errorEnvironment, "a task of 11 bytes at once: at most 5")
}

// A panic of the server's own code ends the rollout, whatever the host makes of it, and no other.
func TestHostPanicOfTheServer(t *testing.T) {
	for _, streamed := range []bool{false, true} {
		m := &model{answer: func(context.Context, int, inference.Request) (inference.Completion, error) { panic("oh") }}
		trace := playHost(t, hosting(3, func(ctx context.Context, job env.Job) (env.Outcome, error) {
			if _, err := chat(ctx, job, []any{user("go")}, map[string]any{"stream": streamed}); err == nil {
				t.Error("the host is told nothing")
			}
			return won()
		}), m, nil)
		failed(t, trace, errorInternal, "panicked: oh")
		if trace.Errors[0].Traceback == "" {
			t.Error("no traceback")
		}
	}
}

// A model call that failed and was tried again is one call of the host, with one seed.
func TestHostCallIsTriedAgain(t *testing.T) {
	r := qwen3(t)
	m := tells(r, "x<|im_end|>")
	good := m.answer
	m.answer = func(ctx context.Context, call int, q inference.Request) (inference.Completion, error) {
		if call < 2 {
			return inference.Completion{}, fmt.Errorf("failure %d", call)
		}
		return good(ctx, 0, q)
	}
	trace := playHost(t, overHTTP(&game{}, nil), m, nil)
	scored(t, trace)
	if len(m.requests) != 3 || m.requests[0].Seed != m.requests[2].Seed || m.requests[0].Seed != mix(13, 0) {
		t.Fatalf("%+v", m.requests)
	}
}

// A host that hangs is given up, one that is cancelled is told, and nobody is answered after the end.
func TestHostIsGivenUp(t *testing.T) {
	r := qwen3(t)
	m := tells(r, "x<|im_end|>")
	var late env.Job
	told := make(chan error, 1)
	p := hostPlayer(t, hosting(3, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		late = job
		if _, err := chat(ctx, job, []any{user("go")}, nil); err != nil && ctx.Err() == nil {
			t.Error(err)
		}
		<-ctx.Done()
		told <- context.Cause(ctx)
		return env.Outcome{}, ctx.Err()
	}), m)
	p.renderer = r
	p.envTimeout = 50 * time.Millisecond
	task := testTask()
	task.TimeoutMs = 200
	trace := playOne(t, p, task)
	failed(t, trace, errorEnvironment, "the rollout has not ended in 50ms")
	if err := <-told; err == nil {
		t.Error("the host is not told")
	}
	if got := contents(trace); got != "user:go|assistant:x" {
		t.Errorf("a failed rollout keeps what there was: %s", got)
	}
	_, err := chat(t.Context(), late, []any{user("go")}, nil)
	if r, ok := err.(*refused); !ok || r.status != http.StatusGone || r.code != codeOver {
		t.Errorf("a call after the end: %v", err)
	}
	if len(m.requests) != 1 {
		t.Errorf("%d model calls", len(m.requests))
	}

	// The policy has moved on.
	stale, cancel := context.WithCancelCause(context.Background())
	task.TimeoutMs = 60_000
	p.envTimeout = time.Minute
	traces := p.play(stale, task, func(version int64) {
		if version != 3 {
			t.Errorf("sampled by version %d", version)
		}
		cancel(errStale)
	})
	failed(t, traces[0], schemas.ErrorStale, "moved on")
	if err := <-told; !errors.Is(err, errStale) {
		t.Errorf("the host is told %v", err)
	}
}

// An answer that comes when the rollout is over changes nothing any more.
func TestAnswerBehindTheEnd(t *testing.T) {
	r := qwen3(t)
	asked, release := make(chan struct{}), make(chan struct{})
	m := tells(r, "x<|im_end|>")
	say := m.answer
	m.answer = func(ctx context.Context, call int, q inference.Request) (inference.Completion, error) {
		if call == 1 {
			close(asked)
			<-release // whatever ctx says
		}
		return say(ctx, 0, q)
	}
	answered := make(chan error, 1)
	p := hostPlayer(t, hosting(3, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		if _, err := chat(ctx, job, []any{user("go")}, nil); err != nil {
			return env.Outcome{}, err
		}
		go func() {
			_, err := chat(context.Background(), job, []any{user("and")}, nil)
			answered <- err
		}()
		<-asked
		return won()
	}), m)
	p.renderer = r
	var sampled atomic.Int32
	trace := p.play(t.Context(), testTask(), func(int64) { sampled.Add(1) })[0]
	scored(t, trace)
	close(release)
	<-answered
	if n := sampled.Load(); n != 1 || contents(trace) != "user:go|assistant:x" {
		t.Errorf("%d answers are heard of: %s", n, contents(trace))
	}
}

// A host has no more than so many requests in the server at once, and none that is too large.
func TestHostRequestsAreBounded(t *testing.T) {
	r := qwen3(t)
	full, release := make(chan struct{}), make(chan struct{})
	m := tells(r, "x<|im_end|>")
	say := m.answer
	m.answer = func(ctx context.Context, call int, q inference.Request) (inference.Completion, error) {
		if call == maxHostRequests-1 {
			close(full)
		}
		<-release
		return say(ctx, 0, q)
	}
	trace := playHost(t, hosting(1000, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		var wg sync.WaitGroup
		for range maxHostRequests {
			wg.Go(func() {
				if _, err := chat(ctx, job, []any{user("go")}, nil); err != nil {
					t.Error(err)
				}
			})
		}
		<-full
		soon, cancel := context.WithTimeout(ctx, deadline)
		defer cancel()
		_, err := chat(soon, job, []any{user("go")}, nil)
		if r, ok := err.(*refused); !ok || r.status != http.StatusServiceUnavailable {
			t.Errorf("one more is told %v", err)
		}
		close(release)
		wg.Wait()
		return won()
	}), m, nil)
	scored(t, trace)
	if n := len(branches(trace.Nodes)); n != maxHostRequests {
		t.Fatalf("%d answers", n)
	}
	large := strings.Repeat("x", 17<<20)
	trace = playHost(t, hosting(1, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		_, err := chat(ctx, job, []any{user(large)}, nil)
		return env.Outcome{}, err
	}), m, nil)
	failed(t, trace, errorEnvironment, "413")
}

// What the host says of a rollout is in its trace, and a teacher is asked about every branch.
func TestHostTraceIsWhole(t *testing.T) {
	r := qwen3(t)
	m := hears(tells(r, "x<|im_end|>"))
	h := hosting(3, func(ctx context.Context, job env.Job) (env.Outcome, error) {
		if string(job.Task) != `{"index":5}` || job.Seed != 11 || job.Split != env.Train || job.Index != 5 || job.Model.Temperature != 0.5 || job.Model.MaxContext != 1000 {
			t.Errorf("%s %+v", job.Task, job)
		}
		for _, text := range []string{"a", "b"} {
			if _, err := chat(ctx, job, []any{user("go"), user(text)}, nil); err != nil {
				return env.Outcome{}, err
			}
		}
		return env.Outcome{Score: env.Score{Rewards: env.Rewards{"a": env.Value(2), "b": env.NotApplicable(1)}, Metrics: map[string]float64{"m": 3}}, Info: json.RawMessage(`{"id":"t1"}`)}, nil
	})
	p := hostPlayer(t, h, m)
	p.renderer, p.teacher = r, Teacher{Policy: "teacher"}
	trace := playOne(t, p, testTask())
	scored(t, trace)
	exact(t, trace, m.made)
	if trace.Info != `{"id":"t1"}` || *trace.Reward != 2 || trace.Rewards["b"] != nil || trace.Metrics["m"] != 3 || trace.StopReason != "done" || trace.Task != `{"index":5}` {
		t.Errorf("%+v", trace)
	}
	if len(m.probes) != 2 {
		t.Errorf("%d probes of two branches", len(m.probes))
	}
	for _, n := range trace.Nodes {
		if slices.Contains(n.Mask, 1) && (len(n.RefLogprobs) == 0 || n.RefModel == "") {
			t.Errorf("no teacher of %q", n.Content)
		}
	}
	if timing := trace.Timing; timing.GenerationMs < 0 || timing.SetupMs < 0 || timing.EnvironmentMs < 0 {
		t.Errorf("%+v", timing)
	}
}
