package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages"
)

// TestReplay recomputes a run of the embedded broker that has ended, into another one and from its files, and refuses
// what makes no sense. The run it begins from a version ends with the same weights; a replay that is done again goes on
// from what is there.
func TestReplay(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	sets := []string{"run.max_steps=4", "run.batch_size=32", "trainer.checkpoint_interval=2"}
	weights := finalWeights(t, all(t, dir, nil, sets...).ended(t, runDeadline))
	replayed := func(args ...string) *process {
		args = append([]string{"--stage", "replay", "--config", orderedConfig, "--telemetry", "", "--set", "dir=" + dir}, args...)
		if !slices.Contains(args, "--run") {
			args = append(args, "--run", "test")
		}
		for _, s := range sets {
			args = append(args, "--set", s)
		}
		return startStage(t, nil, args...)
	}
	for _, c := range []struct{ args, want string }{
		{"--topic traces", "are the same, byte for byte.\n"},
		{"--source parquet --topic samples --from-version 1 --to-version 3", "are the same, byte for byte.\n"},
		{"--mode rescore --into rescored", "\n0 of the traces have another reward"},
		{"--mode train --from-version 2 --into trained", weights},
		{"--mode train --from-version 2 --into trained", "Run trained: 0 records written"},
		{"--mode regenerate --policy 4 --into played --to-version 1 --temperature 1 --k 2", "policy version 4 on catch"},
		{`--mode regenerate --policy 4 --into suite --to-version 1 --suite again --set evals.again.env="catch" --set evals.again.k=3`, "k = 3"},
	} {
		if out := replayed(strings.Fields(c.args)...).ended(t, runDeadline); !strings.Contains(out, c.want) {
			t.Errorf("%s: want %q in\n%s", c.args, c.want, out)
		}
	}
	for _, c := range []struct{ args, want string }{
		{"--into test", "is never written to"},
		{"--mode train", "--into names the run that is trained"},
		{"--mode train --from-version 1 --into other", "the nearest that have are 0 and 2"},
		{"--mode regenerate --into other --policy 9", "no policy \"9\""},
		{"--mode rescore --topic samples", "traces or eval_traces"},
		{"--topic metrics", "recompute from topic \"metrics\""},
		{"--into trained", "choose another name (--into)"},
		{"--run none", "--run and --config name the run"},
	} {
		if stderr := replayed(strings.Fields(c.args)...).refused(t, runDeadline); !strings.Contains(stderr, c.want) {
			t.Errorf("%s: want %q in\n%s", c.args, c.want, stderr)
		}
	}
	audit(t, dir, "test", sets...)
	withServed(t, dir, "test", sets, func(context.Context, *stages.App) { // as by a run that goes on
		if out := replayed("--topic", "traces").ended(t, runDeadline); !strings.Contains(out, "are the same, byte for byte.\n") {
			t.Errorf("where a broker runs already:\n%s", out)
		}
	})
}

// Flags of a replay are refused where none is done, and those of an eval by hand where none is played.
func TestReplayFlags(t *testing.T) {
	none := replayFlags{Mode: stages.ReplayRecompute, Topic: "traces", Source: "topics", ToVersion: -1}
	other := func(change func(*replayFlags)) replayFlags {
		f := none
		change(&f)
		return f
	}
	for name, c := range map[string]struct {
		flags flags
		want  string
	}{
		"replay":            {flags{Stage: "replay", Replay: other(func(f *replayFlags) { f.Into, f.DryRun = "b", true })}, ""},
		"none":              {flags{Stage: "all", Replay: none}, ""},
		"into":              {flags{Stage: "all", Replay: other(func(f *replayFlags) { f.Into = "b" })}, "are for --stage replay"},
		"from a version":    {flags{Stage: "eval", Replay: other(func(f *replayFlags) { f.FromVersion = 1 })}, "are for --stage replay"},
		"the same run":      {flags{Stage: "replay", Run: "a", Replay: other(func(f *replayFlags) { f.Into = "a" })}, "never written to"},
		"policy":            {flags{Stage: "replay", Eval: evalFlags{Policy: "3"}, Replay: none}, "--policy"},
		"policy that plays": {flags{Stage: "replay", Eval: evalFlags{Policy: "3"}, Replay: other(func(f *replayFlags) { f.Mode = stages.ReplayRegenerate })}, ""},
	} {
		if c.flags.Eval.Policy == "" {
			c.flags.Eval.Policy = "latest"
		}
		err := c.flags.checkReplay()
		if err == nil {
			err = c.flags.checkEval()
		}
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}
