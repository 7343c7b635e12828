package envserver

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// contest scores a rollout by its rank in the group.
type contest struct{ game }

func (c *contest) ScoreGroup(_ context.Context, task json.RawMessage, group []env.Rollout) ([]env.Score, error) {
	scores := make([]env.Score, len(group))
	for i, r := range group {
		beaten := 0
		for _, other := range group {
			if len(other.Messages[1].Content) < len(r.Messages[1].Content) {
				beaten++
			}
		}
		scores[i].Rewards = env.Rewards{"rank": env.Value(float64(beaten))}
	}
	return scores, nil
}

func groupTask() *schemas.Task {
	task := testTask()
	task.RolloutIndex, task.GroupSize = -1, 3
	return task
}

func TestGroupIsScoredWhole(t *testing.T) {
	m := says(tokenizer(t), "a", "bbb", "cc")
	traces := testPlayer(t, &contest{}, m).play(t.Context(), groupTask(), nil)
	if len(traces) != 3 {
		t.Fatalf("%d traces", len(traces))
	}
	seeds := map[int64]bool{}
	for i, trace := range traces {
		scored(t, trace)
		if want := float64(len(trace.Nodes[1].Content) - 1); *trace.Reward != want || trace.RolloutIndex != i || trace.StopReason != "done" {
			t.Fatalf("rollout %d, %q: reward %v, want %v", trace.RolloutIndex, trace.Nodes[1].Content, *trace.Reward, want)
		}
		if trace.GroupRun == "" || trace.GroupRun != traces[0].GroupRun {
			t.Fatalf("run %q", trace.GroupRun)
		}
		seeds[m.requests[i].Seed] = true
	}
	if len(seeds) != 3 {
		t.Fatalf("%d seeds for 3 rollouts", len(seeds))
	}
	again := testPlayer(t, &contest{}, m).play(t.Context(), groupTask(), nil)
	if again[0].GroupRun == traces[0].GroupRun || again[0].Seed != traces[0].Seed {
		t.Fatal("another run has the same name, or other seeds")
	}
}

func TestGroupFailsWhole(t *testing.T) {
	tok := tokenizer(t)
	m := &model{answer: func(_ context.Context, call int, r inference.Request) (inference.Completion, error) {
		if call == 1 {
			return inference.Completion{}, &inference.Error{Status: 400, Code: inference.CodeInvalid, Message: "no"}
		}
		return spoken(tok, "hi", r), nil
	}}
	traces := testPlayer(t, &contest{}, m).play(t.Context(), groupTask(), nil)
	for _, trace := range traces {
		failed(t, trace, errorModel, "no")
	}
	if len(traces) != 3 {
		t.Fatalf("%d traces", len(traces))
	}
}

func TestStoppedRolloutHasNoTrace(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	m := &model{answer: func(ctx context.Context, _ int, _ inference.Request) (inference.Completion, error) {
		cancel(errStopped)
		return inference.Completion{}, ctx.Err()
	}}
	if traces := testPlayer(t, &game{}, m).play(ctx, testTask(), nil); traces != nil {
		t.Fatalf("%d traces of a stopped rollout", len(traces))
	}
	ctx, cancel = context.WithCancelCause(t.Context())
	traces := testPlayer(t, &game{}, &model{answer: func(ctx context.Context, _ int, _ inference.Request) (inference.Completion, error) {
		cancel(errStale)
		return inference.Completion{}, ctx.Err()
	}}).play(ctx, testTask(), nil)
	failed(t, traces[0], schemas.ErrorStale, "moved on")
	if errors.Is(errStale, errStopped) || !strings.Contains(traces[0].Nodes[0].Content, "go") {
		t.Fatal("a cancelled rollout lost what there was")
	}
}

// A reply that this stage's own code stumbles over fails its rollout, not the process.
func TestPanicFailsTheRollout(t *testing.T) {
	p := testPlayer(t, &game{}, says(tokenizer(t), "hi"))
	p.renderer = stumbling{p.renderer}
	trace := playOne(t, p, testTask())
	failed(t, trace, errorInternal, "index out of range")
	if !strings.Contains(trace.Errors[0].Traceback, "stumbling") {
		t.Errorf("traceback %.200q", trace.Errors[0].Traceback)
	}
}

type stumbling struct{ render.Renderer }

func (stumbling) Parse(answer []int32, _ bool) render.Answer {
	return render.Answer{Content: string(rune(answer[len(answer)]))}
}
