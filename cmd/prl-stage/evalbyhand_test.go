package main

import (
	"regexp"
	"strings"
	"syscall"
	"testing"
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
	sets := []string{"run.max_steps=6"}
	want := finalWeights(t, all(t, t.TempDir(), nil, sets...).ended(t, runDeadline))
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
	dir, sets := t.TempDir(), []string{"run.max_steps=2"}
	all(t, dir, nil, sets...).ended(t, runDeadline)
	more := []string{"--examples", "600", "--temperature", "1"}
	p := startStage(t, nil, evalArgs(dir, sets, more...)...)
	p.await(t, "rollouts in flight", func() bool { return strings.Contains(p.text(&p.stdout), " in flight") })
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	p.killed(t, runDeadline)
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

// TestEvalByHandFlags are refused where they mean nothing, with what to do.
func TestEvalByHandFlags(t *testing.T) {
	one := 1
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
