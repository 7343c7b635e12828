package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
)

var (
	figure  = regexp.MustCompile(`(?m)^  avg@1 +(.*)$`)
	own     = regexp.MustCompile(`(?m)^catch +32 +(\S+ ± \S+) +(\S+ ± \S+)`)
	resumes = regexp.MustCompile(`--resume (\S+),`)
)

// evalBy runs an eval by hand of the run in dir to its end and gives its avg@1.
func evalBy(t *testing.T, dir string, sets []string, args ...string) string {
	t.Helper()
	out := startStage(t, nil, evalArgs(dir, sets, args...)...).ended(t, runDeadline)
	m := figure.FindStringSubmatch(out)
	if m == nil {
		t.Fatalf("no table in:\n%s", out)
	}
	return m[1]
}

func evalArgs(dir string, sets []string, args ...string) []string {
	all := []string{"--stage", "eval", "--env", "catch", "--config", orderedConfig, "--run", "test", "--set", "dir=" + dir}
	for _, s := range sets {
		all = append(all, "--set", s)
	}
	return append(all, args...)
}

// ownFigures are avg@1 of version 0 and of the final one, as a run says them at its end.
func ownFigures(t *testing.T, summary string) (first, last string) {
	t.Helper()
	m := own.FindStringSubmatch(summary)
	if m == nil {
		t.Fatalf("no evals in:\n%s", tail(summary, 2000))
	}
	return m[1], m[2]
}

// TestEvalByHand measures versions of a run by hand, while it goes on and after its end: the figures are those of the
// run's own evals, the run ends with the weights of one that nobody measured, and its records pass the audit.
func TestEvalByHand(t *testing.T) {
	t.Parallel()
	sets := []string{"run.max_steps=6"}
	want := undisturbed(t, sets...)
	dir := t.TempDir()
	p := all(t, dir, nil, sets...)
	p.await(t, "the first line of its progress", func() bool { return strings.Contains(p.text(&p.stdout), "step ") })
	during := evalBy(t, dir, sets, "--policy", "0")
	summary := p.ended(t, runDeadline)
	if got := finalWeights(t, summary); got != want {
		t.Errorf("weights %s, %s of a run that was not measured", got, want)
	}
	after := evalBy(t, dir, sets)
	if first, last := ownFigures(t, summary); first != during || last != after {
		t.Errorf("by hand version 0 has %s, the last one %s; by the run's own evals %s and %s", during, after, first, last)
	}
	audit(t, dir, "test", sets...)
}

// TestEvalByHandGoesOn kills an eval in the middle, then stops one: each time the next goes on with what is there.
func TestEvalByHandGoesOn(t *testing.T) {
	t.Parallel()
	dir, sets := t.TempDir(), []string{"run.max_steps=2"}
	all(t, dir, nil, sets...).ended(t, runDeadline)
	more := []string{"--examples", "600", "--temperature", "1"}
	p := startStage(t, nil, evalArgs(dir, sets, more...)...)
	p.await(t, "rollouts in flight", func() bool { return strings.Contains(p.text(&p.stdout), " in flight") })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.killed(t, runDeadline)
	for deadline := time.Now().Add(runDeadline); ; time.Sleep(20 * time.Millisecond) { // until its broker has seen it end
		addr, err := broker.Running(filepath.Join(dir, "test", "broker"))
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("the broker at %s goes on without it: %v", addr, err)
		}
		if addr == "" {
			break
		}
	}
	p = startStage(t, nil, evalArgs(dir, sets, append(more, "--resume", "last")...)...)
	p.await(t, "rollouts in flight", func() bool { return strings.Contains(p.text(&p.stdout), " in flight") })
	if err := p.cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	m := resumes.FindStringSubmatch(p.ended(t, runDeadline))
	if m == nil {
		t.Fatal("it ended before the signal")
	}
	got := evalBy(t, dir, sets, append(more, "--resume", m[1])...)
	if want := evalBy(t, dir, sets, more...); got != want {
		t.Errorf("%s after two interruptions, %s without", got, want)
	}
	audit(t, dir, "test", sets...)
}

// records counts what there is of a run that stands still: tasks of training, traces of training, announcements.
func records(t *testing.T, dir string, sets []string) (tasks, traces, announced int) {
	t.Helper()
	withServed(t, dir, "test", sets, func(ctx context.Context, app *stages.App) {
		rt := app.Runtime
		spans, err := rt.Spans(ctx, true, pipeline.TopicTasks("catch"), pipeline.TopicTraces, pipeline.TopicEnvs)
		if err == nil {
			err = rt.ReadSpans(ctx, true, spans, func(r *kgo.Record) error {
				if r.Attrs.IsControl() {
					return nil
				}
				rec, err := rt.Decode(ctx, r)
				switch v := rec.Value.(type) {
				case *schemas.Task:
					if v.Eval == "" {
						tasks++
					}
				case *schemas.Trace:
					traces++
				case *schemas.EnvInfo:
					announced++
				}
				return err
			})
		}
		if err != nil {
			t.Fatal(err)
		}
	})
	return tasks, traces, announced
}

// TestEvalByHandDisturbsNothing measures a run that was killed in the middle of its first wave, in another environment than
// its own: nothing is played or announced but the eval, and the run goes on to the weights it would have had.
func TestEvalByHandDisturbsNothing(t *testing.T) {
	t.Parallel()
	sets := []string{"run.max_steps=4"}
	want := undisturbed(t, sets...)
	dir := t.TempDir()
	all(t, dir, []string{"PRL_CRASH_AT=envserver.published:40"}, append(sets, "envserver.concurrency=4")...).killed(t, runDeadline)
	tasks, traces, announced := records(t, dir, sets)
	if tasks == traces {
		t.Fatalf("all of %d tasks were played before the kill", tasks)
	}
	evalBy(t, dir, append(sets, "envs.catch.options.rows=12", "envs.catch.options.eval_tasks=9"))
	if n, m, k := records(t, dir, sets); n != tasks || m != traces || k != announced {
		t.Errorf("the run had %d tasks, %d traces and %d announcements, and has %d, %d and %d", tasks, traces, announced, n, m, k)
	}
	if got := finalWeights(t, all(t, dir, nil, sets...).ended(t, runDeadline)); got != want {
		t.Errorf("weights %s, %s of a run that was neither killed nor measured", got, want)
	}
	audit(t, dir, "test", sets...)
}

// TestEvalByHandStopsBeforeItBegins offers to resume nothing of which nothing is there.
func TestEvalByHandStopsBeforeItBegins(t *testing.T) {
	t.Parallel()
	dir, sets := t.TempDir(), []string{"run.max_steps=2"}
	all(t, dir, nil, sets...).ended(t, runDeadline)
	p := startStage(t, nil, evalArgs(dir, append(sets, "envs.catch.options.rows=1000"))...)
	if said := p.refused(t, runDeadline); !strings.Contains(said, "rows = 1000") || strings.Contains(said, "--resume") {
		t.Errorf("it ended with %q", said)
	}
}

// TestOneEvalAlone refuses an eval beside one that serves a run for itself alone, and no other.
func TestOneEvalAlone(t *testing.T) {
	cfg := stages.DefaultConfig()
	cfg.Dir, cfg.Run.Name = t.TempDir(), "."
	for _, c := range []struct{ first, second, refused bool }{{false, false, false}, {true, true, true}, {true, false, true}, {false, true, true}} {
		release, err := lockEval(cfg, c.first)
		if err != nil {
			t.Fatal(err)
		}
		second, err := lockEval(cfg, c.second)
		if (err != nil) != c.refused || err != nil && !strings.Contains(err.Error(), "wait for its end") {
			t.Errorf("%+v: error %v", c, err)
		}
		if err == nil {
			if err := second(); err != nil {
				t.Fatal(err)
			}
		}
		if err := release(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestWhileServed ends what depends on another process's broker when that is gone, and when nobody can say whether it is.
func TestWhileServed(t *testing.T) {
	dir := t.TempDir()
	wait := func(ctx context.Context) error { <-ctx.Done(); return nil }
	if err := whileServed(t.Context(), filepath.Join(dir, "gone"), wait); err != nil {
		t.Error(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := whileServed(t.Context(), filepath.Join(dir, "file", "broker"), wait); err == nil || !strings.Contains(err.Error(), "look whether a broker runs") {
		t.Errorf("error %v", err)
	}
	failed := errors.New("it failed")
	if err := whileServed(t.Context(), filepath.Join(dir, "gone"), func(context.Context) error { return failed }); !errors.Is(err, failed) {
		t.Errorf("error %v", err)
	}
}

// TestEvalByHandFlags are refused where they mean nothing, with what to do.
func TestEvalByHandFlags(t *testing.T) {
	one, again := 1, replayFlags{Mode: stages.ReplayRegenerate}
	for _, c := range []struct {
		flags flags
		want  string
	}{
		{flags{Stage: "eval"}, ""},
		{flags{Stage: "eval", Env: []string{"catch"}}, ""},
		{flags{Stage: "envserver", Env: []string{"catch", "wordle"}}, ""},
		{flags{Stage: "scorer", Env: []string{"catch"}}, "--env is for"},
		{flags{Stage: "eval", Env: []string{"catch", "wordle"}}, "one environment at a time"},
		{flags{Stage: "eval", Eval: evalFlags{K: &one}}, "--stage eval with --env"},
		{flags{Stage: "all", Eval: evalFlags{Suite: "catch"}}, "--stage eval with --env"},
		{flags{Stage: "replay", Replay: again, Eval: evalFlags{Suite: "catch", K: &one}}, ""},
		{flags{Stage: "replay", Replay: again, Eval: evalFlags{Examples: &one}}, "plays every recorded task"},
		{flags{Stage: "replay", Replay: again, Env: []string{"catch", "wordle"}}, "one environment at a time"},
	} {
		if c.flags.Eval.Policy == "" {
			c.flags.Eval.Policy = "latest"
		}
		err := c.flags.checkEval()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: error %v, want %q", c.flags, err, c.want)
		}
	}
}
