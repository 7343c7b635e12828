package envserver

import (
	"context"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// A task that names a frozen policy is played by it, and its trace has no versions.
func TestFrozenPolicyPlays(t *testing.T) {
	tok := tokenizer(t)
	m := &model{answer: func(_ context.Context, _ int, r inference.Request) (inference.Completion, error) {
		c := spoken(tok, "hi", r)
		c.Versions = nil
		return c, nil
	}}
	for _, eval := range []string{"", "held-out"} {
		version := int64(4)
		task := testTask()
		task.Policy, task.PinVersion, task.Eval, task.MaxOffPolicySteps = "old", &version, eval, -1
		p := testPlayer(t, &game{}, m)
		p.model = "live"
		told := false
		traces := p.play(t.Context(), task, func(int64) { told = true })
		trace := traces[0]
		scored(t, trace)
		if trace.Policy != "old@1234abcd" || trace.PolicyStart != nil || trace.PolicyEnd != nil || len(trace.Nodes[1].Versions) > 0 || told {
			t.Errorf("policy %q, from version %v to %v", trace.Policy, trace.PolicyStart, trace.PolicyEnd)
		}
		if r := m.requests[len(m.requests)-1]; r.Policy != "old" || r.PinVersion != nil {
			t.Errorf("asked for %+v", r)
		}
	}
}

func TestFrozenPolicyHasNoVersions(t *testing.T) {
	task := testTask()
	task.Policy = "old"
	trace := playOne(t, testPlayer(t, &game{}, says(tokenizer(t), "hi")), task)
	failed(t, trace, errorModel, "version 3 of a frozen policy")
	if trace.Policy != "old@1234abcd" {
		t.Errorf("policy %q", trace.Policy)
	}
}

// The greedy policy has no log-probabilities to train on, whoever it is.
func TestFrozenPolicyIsSampledFrom(t *testing.T) {
	task := testTask()
	task.Policy, task.Temperature = "old", 0
	if playable(task, "game") == nil {
		t.Error("a task to train on at temperature 0 is played")
	}
	if task.Eval, task.Split = "held-out", schemas.SplitEval; playable(task, "game") != nil {
		t.Error("a greedy eval is not played")
	}
}

// What is never stale is never cancelled as stale: the rollouts of frozen policies and tasks without a bound.
func TestFrozenPolicyIsNeverStale(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*schemas.Task)
		stale  bool
	}{
		"a bound":         {func(*schemas.Task) {}, true},
		"no bound":        {func(t *schemas.Task) { t.MaxOffPolicySteps = -1 }, false},
		"a frozen policy": {func(t *schemas.Task) { t.Policy = "old" }, false},
	} {
		task := testTask()
		c.change(task)
		p := newPool(1, 1)
		ctx, cancel := context.WithCancelCause(t.Context())
		j := &job{task: task, phase: running, start: -1, cancel: cancel}
		p.jobs[j] = struct{}{}
		p.sampled(j, 3)
		p.policy(3 + int64(testTask().MaxOffPolicySteps) + 1)
		if (ctx.Err() != nil) != c.stale {
			t.Errorf("%s: cancelled: %v", what, context.Cause(ctx))
		}
	}
}

// Nodes say which of their tokens are content, those of the environment as those of the policy.
func TestBodies(t *testing.T) {
	tok := tokenizer(t)
	for _, most := range []int{20, 2} { // the answer with and without the token that ends it
		task := testTask()
		task.MaxTokens = most
		g := &game{info: env.Info{MaxTurns: 2, CutReplies: true}, prompt: []env.Message{env.System("s"), env.User("")}, reply: goOn}
		trace := playOne(t, testPlayer(t, g, says(tok, "hey")), task)
		scored(t, trace)
		for i, n := range trace.Nodes {
			if n.TokenIDs.Len() == 0 {
				if n.BodyFrom != 0 || n.BodyTo != 0 {
					t.Errorf("node %d, which nobody saw, has content", i)
				}
				continue
			}
			ids := n.TokenIDs.Values()
			if got := tok.Decode(ids[n.BodyFrom:n.BodyTo]); got != n.Content || n.BodyTo == 0 {
				t.Errorf("node %d: tokens %d to %d are %q, the content is %q", i, n.BodyFrom, n.BodyTo, got, n.Content)
			}
			for _, id := range ids[n.BodyFrom:n.BodyTo] {
				if tok.IsSpecial(id) {
					t.Errorf("node %d: scaffolding counts as content", i)
				}
			}
		}
	}
}
