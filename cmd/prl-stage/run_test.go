package main

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// orderedConfig is a small run in ordered mode.
const orderedConfig = "configs/ordered.toml"

const runDeadline = 3 * time.Minute

// all starts the whole pipeline in ordered mode with its data in dir.
func all(t *testing.T, dir string, env []string, sets ...string) *process {
	t.Helper()
	args := []string{"--stage", "all", "--config", orderedConfig, "--run", "test", "--telemetry", "", "--set", "dir=" + dir, "--set", "inference.listen=localhost:0"}
	for _, s := range sets {
		args = append(args, "--set", s)
	}
	return startStage(t, env, args...)
}

// undisturbed is the SHA-256 of the last weights of a run in ordered mode that nobody stops, kills or looks at. Tests that hold
// another run to it share it: it runs once for the same settings.
func undisturbed(t *testing.T, sets ...string) string {
	t.Helper()
	one, _ := alone.LoadOrStore(strings.Join(sets, " "), &undisturbedRun{})
	r := one.(*undisturbedRun)
	r.once.Do(func() { r.weights = finalWeights(t, all(t, t.TempDir(), nil, sets...).ended(t, runDeadline)) })
	if r.weights == "" {
		t.Fatal("the run that nobody disturbs has failed, in another test")
	}
	return r.weights
}

// alone are the undisturbed runs, by their settings.
var alone sync.Map

type undisturbedRun struct {
	once    sync.Once
	weights string // empty where it failed
}

// TestInvariant_Determinism runs one seed in ordered mode with evals on and off, and with one and three partitions of
// traces: the weights end with the same bytes. Another seed ends with others.
func TestInvariant_Determinism(t *testing.T) {
	t.Parallel()
	want := undisturbed(t)
	for _, sets := range [][]string{
		nil,
		{"evals.catch.interval=2"},
		{"run.trace_partitions=1"},
	} {
		name := strings.Join(append([]string{"seed 1"}, sets...), " ")
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			got := finalWeights(t, all(t, dir, nil, sets...).ended(t, runDeadline))
			audit(t, dir, "test", sets...)
			if got != want {
				t.Errorf("weights %s, want %s", got, want)
			}
		})
	}
	t.Run("seed 2", func(t *testing.T) {
		if got := finalWeights(t, all(t, t.TempDir(), nil, "run.seed=2").ended(t, runDeadline)); got == want {
			t.Error("another seed gave the same weights")
		}
	})
}

// TestInvariant_SIGKILLAnywhere kills the whole pipeline at ten moments, one after the other in one run: at places where
// a crash would hurt most, and at moments of no choosing. It ends with the weights of a run that was never killed.
func TestInvariant_SIGKILLAnywhere(t *testing.T) {
	t.Parallel()
	const steps = "run.max_steps=16" // enough for ten kills on a fast machine
	want := undisturbed(t, steps)
	dir := t.TempDir()
	for _, place := range []string{
		"packer.before-commit:2", "trainer.after-weights:2", "scorer.before-commit:3", "emitter.before-commit:2",
		"trainer.after-publish:1", "packer.after-commit:1",
	} {
		all(t, dir, []string{"PRL_CRASH_AT=" + place}, steps).killed(t, runDeadline)
	}
	rng := rand.New(rand.NewPCG(3, uint64(time.Now().UnixNano())))
	for range 4 {
		p := all(t, dir, nil, steps)
		wait := time.Duration(300+rng.IntN(1200)) * time.Millisecond
		select {
		case <-time.After(wait): // the fault itself: a kill at a moment of no choosing
		case <-p.done:
			t.Fatal("the run ended before the kill; it needs more steps")
		}
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		p.killed(t, runDeadline)
	}
	got := finalWeights(t, all(t, dir, nil, steps).ended(t, runDeadline))
	if got != want {
		t.Errorf("weights %s after the kills, %s without", got, want)
	}
	audit(t, dir, "test", steps)
}

// TestDistributed runs every stage as a process of its own against --stage broker.
func TestDistributed(t *testing.T) {
	t.Parallel()
	want := undisturbed(t)
	dir := t.TempDir()
	common := func(stage string, more ...string) []string {
		return append([]string{"--stage", stage, "--config", orderedConfig, "--run", "test", "--telemetry", "", "--set", "dir=" + dir}, more...)
	}
	b := startStage(t, nil, common("broker", "--set", "broker.listen=localhost:0")...)
	addr := b.logged(t, "broker serves", "addr=")
	more := []string{"--brokers", addr}
	inf := startStage(t, nil, common("inference", append(more, "--set", "inference.listen=localhost:0")...)...)
	url := inf.logged(t, "inference serves", "addr=")
	var trainer *process
	for _, stage := range []string{"emitter", "scorer", "packer", "eval", "sink", "envserver", "trainer"} {
		p := startStage(t, nil, common(stage, append(more, "--set", "envserver.model_url="+url)...)...)
		if stage == "trainer" {
			trainer = p
		}
	}
	trainer.ended(t, runDeadline) // it has published the final version
	summary := startStage(t, nil, common("all", more...)...).ended(t, runDeadline)
	if got := finalWeights(t, summary); got != want {
		t.Errorf("weights %s in separate processes, %s in one", got, want)
	}
	_, last := ownFigures(t, summary)
	if got := evalBy(t, t.TempDir(), nil, more...); got != last { // its servers are all there, its folder is not
		t.Errorf("by hand the last version has %s, %s by the run's own eval", got, last)
	}
}

// TestStopAndGoOn stops the pipeline with SIGTERM: it exits without an error, and the same command goes on to the weights
// of a run that was never stopped. A model folder lies there at the end.
func TestStopAndGoOn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := all(t, dir, nil, "run.max_steps=6")
	p.await(t, "the weights of version 2", func() bool {
		weights, err := filepath.Glob(filepath.Join(dir, "test", "blobs", "weights", "*"))
		return err == nil && len(weights) > 2
	})
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if out := p.ended(t, runDeadline); !strings.Contains(out, "the same command goes on") {
		t.Fatalf("the run ended before the signal:\n%s", out)
	}
	got := finalWeights(t, all(t, dir, nil, "run.max_steps=6").ended(t, runDeadline))
	if want := undisturbed(t, "run.max_steps=6"); got != want {
		t.Errorf("weights %s after a stop, %s without", got, want)
	}
	for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json"} {
		if _, err := os.Stat(filepath.Join(dir, "test", "model-6", name)); err != nil {
			t.Error(err)
		}
	}
}
