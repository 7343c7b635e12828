package main

import (
	"regexp"
	"testing"
)

var cleaned = regexp.MustCompile(`msg="cleaned up".* records=[1-9]`)

// TestCleanupChangesNothing cleans up all the time while the pipeline is killed now and then: it ends with the weights of
// a run that keeps everything.
func TestCleanupChangesNothing(t *testing.T) {
	t.Parallel()
	const steps = "run.max_steps=16"
	want := undisturbed(t, steps)
	dir := t.TempDir()
	start := func(env ...string) *process {
		return startStage(t, env, "--stage", "all", "--config", orderedConfig, "--run", "test", "--telemetry", "", "--log-level", "info",
			"--set", "dir="+dir, "--set", "inference.listen=localhost:0", "--set", steps, "--set", "trainer.checkpoint_interval=2",
			"--set", "cleanup.every=50ms", "--set", "sink.max_age=50ms")
	}
	deleted := 0
	for _, env := range []string{"PRL_CRASH_AT=packer.after-commit:5", "PRL_CRASH_AT=trainer.after-weights:4", ""} {
		p := start(env)
		if env != "" {
			p.killed(t, runDeadline)
		} else if got := finalWeights(t, p.ended(t, runDeadline)); got != want {
			t.Errorf("weights %s with clean-up, %s without", got, want)
		}
		deleted += len(cleaned.FindAllString(p.text(&p.stderr), -1))
	}
	if deleted == 0 {
		t.Error("nothing was deleted")
	}
}
