package envserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

func TestInvariant_TokenExactness(t *testing.T) {
	tok := tokenizer(t)
	// The first answer holds a role's token and a broken character: no text renders to it.
	odd := append(tok.Encode("a\xc3b"), tok.GenerationPrompt()[0], tok.Encode("c")[0], tok.EOS())
	m := &model{answer: func(_ context.Context, call int, r inference.Request) (inference.Completion, error) {
		if call == 1 {
			return spoken(tok, "bye", r), nil
		}
		return inference.Completion{Tokens: odd, Logprobs: []float32{-1, -2, -3, -4, -5, -6}, FinishReason: inference.FinishStop,
			Versions: []schemas.VersionRun{{Offset: 0, Version: 4}, {Offset: 2, Version: 5}}}, nil
	}}
	g := &game{info: env.Info{MaxTurns: 5}, reply: func(_ context.Context, turn int, r env.Message) (env.Turn, error) {
		return env.Turn{Done: turn == 2, Messages: []env.Message{env.User("more")}}, nil
	}}
	trace := playOne(t, testPlayer(t, g, m), testTask())
	scored(t, trace)
	if got := contents(trace); got != "user:go|assistant:a\uFFFDbc|user:more|assistant:bye|user:more" {
		t.Fatal(got)
	}
	last := m.requests[1]
	equal(t, "what the trace holds is what the model saw and sampled", tokensOf(trace), append(last.Tokens, append(tok.Encode("bye"), tok.EOS())...))
	equal(t, "stop tokens", last.StopTokens, []int32{tok.EOS()})
	first := trace.Nodes[1]
	equal(t, "tokens", first.TokenIDs.Values(), append(tok.GenerationPrompt(), odd...))
	equal(t, "mask", first.Mask, []byte{0, 1, 1, 1, 1, 1, 1})
	equal(t, "logprobs", first.Logprobs.Values(), []float32{0, -1, -2, -3, -4, -5, -6})
	equal(t, "versions", first.Versions, []schemas.VersionRun{{Offset: 1, Version: 4}, {Offset: 3, Version: 5}})
	if first.Temperature != 0.5 || trace.Nodes[0].Temperature != 0 || first.TokenRewards != nil {
		t.Fatalf("temperatures %v and %v", first.Temperature, trace.Nodes[0].Temperature)
	}
	if *trace.PolicyStart != 3 || *trace.PolicyEnd != 5 {
		t.Fatalf("policy %d to %d", *trace.PolicyStart, *trace.PolicyEnd)
	}
	for i, n := range trace.Nodes {
		if n.Parent != i-1 {
			t.Fatalf("node %d has the parent %d", i, n.Parent)
		}
	}
	if n := trace.Nodes[4]; n.TokenIDs.Len() != 0 {
		t.Fatal("a message the policy never saw has tokens")
	}
	if trace.Task != `{"index":5}` || trace.StopReason != "done" || trace.Truncated || trace.Instance != "here" || trace.EnvVersion != "1" {
		t.Fatalf("%+v", trace)
	}
}

func TestTokenRewards(t *testing.T) {
	reply := "é\xffa" // two bytes, a broken one, and one
	for _, cut := range []bool{false, true} {
		g := &game{score: func([]string) (env.Score, error) {
			return env.Score{Rewards: env.Rewards{}, CharRewards: []env.CharRewards{{1, 2, 3, 9}}}, nil
		}}
		task := testTask()
		want := []float32{0, 0, 1, 2, 3, 9}
		if cut {
			task.MaxTokens, want = 4, want[:5]
		}
		trace := playOne(t, testPlayer(t, g, says(tokenizer(t), reply)), task)
		if len(trace.Errors) > 0 || trace.Reward != nil {
			t.Fatalf("errors %v, reward %v of a rollout to which none applies", trace.Errors, trace.Reward)
		}
		equal(t, "rewards of the tokens", trace.Nodes[1].TokenRewards.Values(), want)
	}
}

// A limit on the policy truncates a rollout, which is scored all the same.
func TestLimitsTruncate(t *testing.T) {
	tok := tokenizer(t)
	for _, c := range []struct {
		name  string
		limit func(*schemas.Task, *game)
		hangs int // call from which on the model does not answer
		stop  string
		turns int
	}{
		{"tokens of a call", func(task *schemas.Task, _ *game) { task.MaxTokens = 3 }, 9, stopMaxTokens, 1},
		{"tokens of a call, and the end of the episode", func(task *schemas.Task, g *game) { task.MaxTokens, g.reply = 3, nil }, 9, "done", 1},
		{"tokens of the rollout", func(task *schemas.Task, _ *game) { task.MaxRolloutTokens = 18 }, 9, stopMaxTokens, 2},
		{"nothing left for another call", func(task *schemas.Task, _ *game) { task.MaxRolloutTokens = 16 }, 9, stopMaxTokens, 1},
		{"turns", func(_ *schemas.Task, g *game) { g.info.MaxTurns = 3 }, 9, "max_turns", 3},
		{"time", func(task *schemas.Task, _ *game) { task.TimeoutMs = 100 }, 1, stopDeadline, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{answer: func(ctx context.Context, call int, r inference.Request) (inference.Completion, error) {
					if call >= c.hangs {
						<-ctx.Done()
						return inference.Completion{}, ctx.Err()
					}
					return spoken(tok, "hello", r), nil
				}}
				g, task := &game{info: env.Info{MaxTurns: 8}, reply: goOn}, testTask()
				c.limit(task, g)
				trace := playOne(t, testPlayer(t, g, m), task)
				scored(t, trace)
				if !trace.Truncated || trace.StopReason != c.stop || strings.Count(contents(trace), "assistant") != c.turns {
					t.Fatalf("truncated %v, stop %q: %s", trace.Truncated, trace.StopReason, contents(trace))
				}
				if n := len(tokensOf(trace)); n > task.MaxRolloutTokens {
					t.Fatalf("%d tokens, at most %d", n, task.MaxRolloutTokens)
				}
			})
		})
	}
}

// A failure of the infrastructure is an error without a reward.
func TestFailures(t *testing.T) {
	tok := tokenizer(t)
	broken := errors.New("broken")
	hello := func(_ context.Context, _ int, r inference.Request) (inference.Completion, error) {
		return spoken(tok, "hello", r), nil
	}
	inexact := func(change func(*inference.Completion)) func(context.Context, int, inference.Request) (inference.Completion, error) {
		return func(_ context.Context, _ int, r inference.Request) (inference.Completion, error) {
			c := spoken(tok, "hello", r)
			change(&c)
			return c, nil
		}
	}
	pin := int64(8)
	release := make(chan struct{})
	for _, c := range []struct {
		name   string
		game   game
		task   func(*schemas.Task)
		answer func(context.Context, int, inference.Request) (inference.Completion, error)
		kind   string
		what   string
		calls  int
	}{
		{name: "start", game: game{start: func() error { return broken }}, kind: errorEnvironment, what: "broken"},
		{name: "reply", game: game{reply: func(context.Context, int, env.Message) (env.Turn, error) { return env.Turn{}, broken }}, kind: errorEnvironment, what: "broken", calls: 1},
		{name: "panic", game: game{reply: func(context.Context, int, env.Message) (env.Turn, error) { panic("oh") }}, kind: errorEnvironment, what: "panicked: oh", calls: 1},
		{name: "hangs", game: game{reply: func(context.Context, int, env.Message) (env.Turn, error) { <-release; return env.Turn{}, nil }}, kind: errorEnvironment, what: "no answer in 1m0s", calls: 1},
		{name: "score", game: game{score: func([]string) (env.Score, error) { return env.Score{}, broken }}, kind: errorEnvironment, what: "broken", calls: 1},
		{name: "prompt too long", task: func(task *schemas.Task) { task.MaxRolloutTokens = 5 }, kind: errorEnvironment, what: "the prompt has 5 tokens"},
		{name: "model", answer: func(context.Context, int, inference.Request) (inference.Completion, error) {
			return inference.Completion{}, broken
		}, kind: errorModel, what: "try 3 of 3: broken", calls: 3},
		{name: "model refuses", answer: func(context.Context, int, inference.Request) (inference.Completion, error) {
			return inference.Completion{}, &inference.Error{Status: 400, Code: inference.CodeInvalid, Message: "no"}
		}, kind: errorModel, what: "try 1 of 3: no", calls: 1},
		{name: "time without an answer", answer: func(ctx context.Context, _ int, _ inference.Request) (inference.Completion, error) {
			<-ctx.Done()
			return inference.Completion{}, ctx.Err()
		}, kind: errorModel, what: "time is over", calls: 1},
		{name: "time among failures", task: func(task *schemas.Task) { task.TimeoutMs = 10 }, answer: func(context.Context, int, inference.Request) (inference.Completion, error) {
			return inference.Completion{}, broken
		}, kind: errorModel, what: "broken", calls: 1},
		{name: "no log-probability", answer: inexact(func(c *inference.Completion) { c.Logprobs = c.Logprobs[1:] }), kind: errorModel, what: "cannot be trained on", calls: 1},
		{name: "no tokens", answer: inexact(func(c *inference.Completion) { *c = inference.Completion{FinishReason: inference.FinishStop} }), kind: errorModel, what: "0 tokens", calls: 1},
		{name: "another version", task: func(task *schemas.Task) { task.PinVersion = &pin },
			answer: inexact(func(c *inference.Completion) { c.Versions = []schemas.VersionRun{{Offset: 0, Version: 9}} }), kind: errorModel, what: "version 9 answered", calls: 1},
		{name: "group scoring", task: func(task *schemas.Task) { task.RolloutIndex, task.GroupSize = -1, 1 }, kind: errorEnvironment, what: "group scoring"},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				task := testTask()
				task.TimeoutMs = 59_000
				if c.task != nil {
					c.task(task)
				}
				m := &model{answer: hello}
				if c.answer != nil {
					m.answer = c.answer
				}
				if c.name == "hangs" {
					release = make(chan struct{})
					defer close(release)
				}
				trace := playOne(t, testPlayer(t, &c.game, m), task)
				failed(t, trace, c.kind, c.what)
				if len(m.requests) != c.calls {
					t.Fatalf("%d model calls, want %d", len(m.requests), c.calls)
				}
				if c.name == "panic" && !strings.Contains(trace.Errors[0].Traceback, "rollout_test.go") {
					t.Fatalf("traceback %q", trace.Errors[0].Traceback)
				}
			})
		})
	}
}

func TestRetriedCallIsOneSample(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tok := tokenizer(t)
		m := &model{answer: func(_ context.Context, call int, r inference.Request) (inference.Completion, error) {
			if call < 2 {
				return inference.Completion{}, fmt.Errorf("failure %d", call)
			}
			return spoken(tok, "hi", r), nil
		}}
		start := time.Now()
		trace := playOne(t, testPlayer(t, &game{}, m), testTask())
		scored(t, trace)
		if contents(trace) != "user:go|assistant:hi" || len(m.requests) != 3 || time.Since(start) < 200*time.Millisecond {
			t.Fatalf("%s after %d requests in %v", contents(trace), len(m.requests), time.Since(start))
		}
		for _, r := range m.requests[1:] {
			if r.Seed != m.requests[0].Seed {
				t.Fatal("a retried request has another seed")
			}
		}
	})
}

func TestInvariant_SeedsOfCalls(t *testing.T) {
	seeds := func(change func(*schemas.Task)) [2]int64 {
		task := testTask()
		change(task)
		m := says(tokenizer(t), "hi")
		playOne(t, testPlayer(t, &game{info: env.Info{MaxTurns: 2}, reply: goOn}, m), task)
		return [2]int64{m.requests[0].Seed, m.requests[1].Seed}
	}
	first := seeds(func(*schemas.Task) {})
	if again := seeds(func(t *schemas.Task) { t.Attempt = 1 }); again != first {
		t.Fatalf("seeds of another attempt are %v, not %v", again, first)
	}
	if other := seeds(func(t *schemas.Task) { t.Seed++ }); first[0] == first[1] || other[0] == first[0] {
		t.Fatalf("seeds %v and %v", first, other)
	}
	// The first output of SplitMix64 from seed 0 is 0xe220a8397b1dcdaf.
	if got := mix(0, 0); got != 0xe220a8397b1dcdaf>>1 {
		t.Fatalf("mix(0, 0) = %x", got)
	}
}
