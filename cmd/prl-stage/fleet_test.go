package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestInvariant_SharedServerIsKilled kills an environment server that two runs share, while rollouts of both run, and one
// more time with the inference server that they share: both runs end with the weights that they have alone, and their audits are clean (I1, I2, I4, I6).
func TestInvariant_SharedServerIsKilled(t *testing.T) {
	t.Parallel()
	const steps = "run.max_steps=4" // of 64 rollouts each: enough for three kills
	want := undisturbed(t, steps, "evals={}")
	dir := t.TempDir()
	start := func(env []string, stage string, more ...string) *process {
		args := append([]string{"--stage", stage, "--config", orderedConfig, "--telemetry", "", "--set", "dir=" + dir, "--set", steps, "--set", "evals={}"}, more...)
		return startStage(t, env, args...)
	}
	addr := start(nil, "broker", "--run", "kafka", "--set", "broker.listen=localhost:0").logged(t, "broker serves", "addr=")
	both := []string{"--run", "A", "--run", "B", "--brokers", addr}
	inference := start(nil, "inference", append(both, "--set", "inference.listen=localhost:0")...)
	url := inference.logged(t, "inference serves", "addr=")
	serve := append(both, "--set", "envserver.model_url="+url)
	killed := start([]string{"PRL_CRASH_AT=envserver.published:100"}, "envserver", serve...)
	var trainers []*process
	for _, run := range []string{"A", "B"} {
		for _, stage := range []string{"emitter", "scorer", "packer", "trainer"} {
			p := start(nil, stage, "--run", run, "--brokers", addr)
			if stage == "trainer" {
				trainers = append(trainers, p)
			}
		}
	}
	killed.killed(t, runDeadline)
	start([]string{"PRL_CRASH_AT=envserver.published:150"}, "envserver", serve...).killed(t, runDeadline)
	if err := inference.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	inference.killed(t, runDeadline)
	start(nil, "inference", append(both, "--set", "inference.listen="+strings.TrimPrefix(url, "http://"))...)
	last := start(nil, "envserver", serve...)
	for i, run := range []string{"A", "B"} {
		trainers[i].ended(t, runDeadline)
		summary := start(nil, "all", "--run", run, "--brokers", addr, "--set", "inference.listen=localhost:0", "--set", "ui.enabled=false").ended(t, runDeadline)
		if got := finalWeights(t, summary); got != want {
			t.Errorf("run %s has the weights %s, alone %s", run, got, want)
		}
		if said := start(nil, "audit", "--run", run, "--brokers", addr).ended(t, runDeadline); !strings.Contains(said, "violations: 0") {
			t.Errorf("the audit of run %s:\n%s", run, said)
		}
	}
	last.logged(t, "the fleet serves a run", "run=")
}

// TestFleetFollowsItsFile changes the file of a fleet that runs.
func TestFleetFollowsItsFile(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "fleet.toml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	addr := startStage(t, nil, "--stage", "broker", "--config", orderedConfig, "--run", "kafka", "--telemetry", "", "--set", "dir="+dir, "--set", "broker.listen=localhost:0").logged(t, "broker serves", "addr=")
	for _, run := range []string{"A", "B"} {
		startStage(t, nil, "--stage", "setup", "--config", orderedConfig, "--run", run, "--set", "dir="+dir, "--brokers", addr).ended(t, runDeadline)
	}
	write("[fleet.runs.A]\n")
	p := startStage(t, nil, "--stage", "envserver", "--config", file, "--telemetry", "", "--set", "dir="+dir, "--brokers", addr)
	said := func(what string) {
		t.Helper()
		p.await(t, what, func() bool { return strings.Contains(p.text(&p.stderr), what) })
	}
	said(`msg="the fleet serves a run"`)
	write("[fleet.runs.A]\nshare = -1\n")
	said("fleet.runs.A.share = -1: 0.001 to 1000")
	write("[fleet.runs.A]\nshare = 2\n[fleet.runs.B]\n")
	said(`msg="the run has another share"`)
	p.await(t, "run B", func() bool { return strings.Count(p.text(&p.stderr), `msg="the fleet serves a run"`) == 2 })
	write("[fleet.runs.B]\n")
	said(`msg="the run is taken off the fleet"`)
}

func TestSeveralRunsAreForFleets(t *testing.T) {
	for _, c := range []struct {
		f    flags
		want string
	}{
		{flags{Stage: "trainer", Runs: []string{"A", "B"}}, "--stage trainer serves one run"},
		{flags{Stage: "envserver", Runs: []string{"A", "B"}, Try: tryFlags{Play: true}}, "belongs to none"},
	} {
		if err := c.f.takeRuns(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: %v", c.f.Runs, err)
		}
	}
	f := flags{Stage: "trainer", Runs: []string{"A"}}
	if err := f.takeRuns(); err != nil || f.Run != "A" {
		t.Errorf("%v, run %q", err, f.Run)
	}
}
