package main

import (
	"fmt"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/collector"
	"github.com/prl-project/prl/pipeline/tracing"
)

// TestSIGKILLMakesNoSecondSpan kills a run that is traced where work is done again afterwards. What was done twice has one id: of
// nothing there are two spans, and those that came twice are the same.
func TestSIGKILLMakesNoSecondSpan(t *testing.T) {
	t.Parallel()
	const steps = "run.max_steps=6"
	want := undisturbed(t, steps)
	c := collector.Start(t)
	dir, sets := t.TempDir(), []string{steps, "tracing.endpoint=" + c.URL}
	for _, place := range []string{"envserver.published:20", "scorer.before-commit:3", "packer.before-commit:2", "trainer.after-weights:1", "emitter.before-commit:2"} {
		all(t, dir, []string{"PRL_CRASH_AT=" + place}, sets...).killed(t, runDeadline)
	}
	if got := finalWeights(t, all(t, dir, nil, sets...).ended(t, runDeadline)); got != want {
		t.Errorf("weights %s traced and killed, %s neither", got, want)
	}
	ids, rollouts, parents := map[string]tracing.Context{}, 0, map[tracing.Context]tracing.Context{}
	for _, s := range c.Spans() {
		what := fmt.Sprintln(s.Service, s.Name, s.Text("prl.eval"), s.Number("prl.group"), s.Number("prl.rollout"), s.Number("prl.attempt"), s.Number("prl.step"))
		switch s.Name {
		case tracing.TaskSpan, tracing.RolloutSpan, tracing.ScoreGroupSpan, tracing.ScoredSpan, tracing.OutcomeSpan, tracing.PackSpan, tracing.TrainSpan, tracing.TrainedSpan, tracing.PublishSpan:
			if old, ok := ids[what]; ok && old != s.Context() {
				t.Errorf("%s has the ids %v and %v", what, old, s.Context())
			}
			ids[what] = s.Context()
		}
		if s.Name == tracing.RolloutSpan {
			rollouts++
		}
		if old, ok := parents[s.Context()]; ok && old != s.Parent() {
			t.Errorf("%s was under %v and is under %v", what, old, s.Parent())
		}
		parents[s.Context()] = s.Parent()
	}
	if rollouts == 0 {
		t.Error("no rollout was traced")
	}
	t.Logf("%d spans, %d of rollouts", len(c.Spans()), rollouts)
}
