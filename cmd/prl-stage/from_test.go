package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A run that begins from a version of another one, with the same settings in ordered mode, ends with its weights. A version
// without a checkpoint, and a run that has begun elsewhere, are refused.
func TestBeginFromVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sets := []string{"run.max_steps=6", "trainer.checkpoint_interval=2"}
	begin := func(run, from string) *process {
		args := []string{"--stage", "all", "--config", orderedConfig, "--run", run, "--from", from, "--telemetry", "", "--set", "dir=" + dir, "--set", "inference.listen=localhost:0"}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		return startStage(t, nil, args...)
	}
	want := finalWeights(t, all(t, dir, nil, sets...).ended(t, runDeadline))
	if got := finalWeights(t, begin("branch", "test@4").ended(t, runDeadline)); got != want {
		t.Errorf("weights %s, the run it began from ended with %s", got, want)
	}
	audit(t, dir, "test", sets...)
	audit(t, dir, "branch", sets...)
	// Without --config it has the settings of the run it begins from, wherever the folders are by then.
	if err := os.Rename(dir, dir+"-moved"); err != nil {
		t.Fatal(err)
	}
	dir += "-moved"
	t.Cleanup(func() { os.RemoveAll(dir) })
	if got := finalWeights(t, startStage(t, nil, "--stage", "all", "--run", "second", "--from", "test@2", "--telemetry", "", "--set", "dir="+dir).ended(t, runDeadline)); got != want {
		t.Errorf("weights %s with the settings of the run it began from, want %s", got, want)
	}
	if rows, err := filepath.Glob(filepath.Join(dir, "second", "parquet", "traces", "*.parquet")); err != nil || len(rows) < 2 {
		t.Errorf("Parquet files of traces: %v, %v", rows, err)
	}
	// Who looks at a run, or goes on with it, need not say again with what settings.
	if out := startStage(t, nil, "--stage", "audit", "--run", "branch", "--set", "dir="+dir).ended(t, runDeadline); !strings.Contains(out, "violations: 0") {
		t.Errorf("an audit without --config:\n%s", out)
	}
	if got := finalWeights(t, startStage(t, nil, "--stage", "all", "--run", "branch", "--set", "dir="+dir, "--telemetry", "").ended(t, runDeadline)); got != want {
		t.Errorf("weights %s of the run that has ended, want %s", got, want)
	}
	if said := startStage(t, nil, "--stage", "audit", "--run", "brunch", "--set", "dir="+dir).refused(t, runDeadline); !strings.Contains(said, "there is no run brunch in "+dir+": there are branch, second, test") {
		t.Errorf("an audit of a run that is not there: %s", said)
	}
	for _, refused := range []struct{ run, from, want string }{
		{"other", "test@3", "the nearest that have are 2 and 4"},
		{"other", "test@6", "run.max_steps = 6: the run would have ended"},
		{"branch", "test@2", "run branch has begun, from test@4"},
		{"test", "branch@4", "run test has begun, at version 0"},
		{"test", "test@4", "the run itself"},
		{"other", "none@4", "the weights of that run are not here"},
		{"other", "test", "such as demo@40"},
	} {
		if stderr := begin(refused.run, refused.from).refused(t, runDeadline); !strings.Contains(stderr, refused.want) {
			t.Errorf("--run %s --from %s: %s\nwant %q", refused.run, refused.from, stderr, refused.want)
		}
	}
}

// The moving averages of rae go on in the new run.
func TestBeginWithAverages(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sets := []string{"run.max_steps=4", "trainer.checkpoint_interval=2", "run.trace_partitions=1", "scorer.advantage=rae"}
	want := finalWeights(t, all(t, dir, nil, sets...).ended(t, runDeadline))
	args := []string{"--stage", "all", "--config", orderedConfig, "--run", "branch", "--from", "test@2", "--telemetry", "", "--set", "dir=" + dir, "--set", "inference.listen=localhost:0"}
	for _, s := range sets {
		args = append(args, "--set", s)
	}
	if got := finalWeights(t, startStage(t, nil, args...).ended(t, runDeadline)); got != want {
		t.Errorf("weights %s, the run it began from ended with %s", got, want)
	}
	audit(t, dir, "branch", sets...)
}
