package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
)

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "--model") {
		main()
		return
	}
	os.Exit(m.Run())
}

// What is measured is what was asked for: every rollout is played to its end, by the real binary, with all of them at the model
// at once. The figures are not looked at.
func TestOurs(t *testing.T) {
	r := play(t, playOurs, flags{Binary: build(t), Memory: "800MiB", Concurrency: 20}, 20)
	if r.Rollouts != 20 || r.Failed > 0 || r.AtOnce != 20 || r.Took <= 0 {
		t.Errorf("measured %+v", r)
	}
	if r.Usage.Before <= 0 || r.Usage.Peak < r.Usage.Before || r.Usage.CPU <= 0 || r.Live <= 0 {
		t.Errorf("it took %+v", r.Usage)
	}
}

func TestTheirs(t *testing.T) {
	venv := filepath.Join("..", "..", "..", ".cache", "verifiers-0.4.0")
	need.Verifiers(t, venv)
	python, err := filepath.Abs(filepath.Join(venv, "bin", "python"))
	if err != nil {
		t.Fatal(err)
	}
	r := play(t, playVerifiers, flags{Python: python, PythonOnce: 20, Takes: 3 * time.Second}, 0)
	if r.Rollouts != 20 || r.Failed > 0 || r.AtOnce < 1 || r.AtOnce > 20 || r.Took <= 0 {
		t.Errorf("measured %+v", r)
	}
}

// BenchmarkSlow is what 10,000 rollouts cost that all wait for the model at once. It measures once: -benchtime 1x.
func BenchmarkSlow(b *testing.B) {
	f := flags{Binary: build(b), Memory: "800MiB", Concurrency: 10_000, Takes: 5 * time.Second}
	for b.Loop() {
		r := play(b, playOurs, f, f.Concurrency)
		if r.AtOnce != f.Concurrency {
			b.Fatalf("%d rollouts waited for the model at once", r.AtOnce)
		}
		n := float64(r.Rollouts)
		b.ReportMetric(n/r.Took.Seconds(), "rollouts/s")
		b.ReportMetric(float64(r.AtOnce), "at-once")
		b.ReportMetric(r.Usage.CPU.Seconds()*1000/n, "cpu-ms/rollout")
		b.ReportMetric(mib(r.Usage.Peak), "peak-MiB")
		b.ReportMetric(float64(r.Usage.Peak-r.Usage.Before)/n/1024, "KiB/rollout")
		b.ReportMetric(float64(r.Live)/n/1024, "live-KiB/rollout")
	}
}

// play lets a server play against a model that has so many calls at once before it answers any.
func play(tb testing.TB, player player, f flags, atOnce int) result {
	tb.Helper()
	m, err := startModel(tb.Context(), f.Takes, atOnce)
	if err != nil {
		tb.Fatal(err)
	}
	defer m.stop()
	r, err := player(tb.Context(), f, tb.TempDir(), m)
	if err != nil {
		tb.Fatal(err)
	}
	return r
}

func build(t testing.TB) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "prl-stage")
	if out, err := exec.Command("go", "build", "-o", file, "../../../cmd/prl-stage").CombinedOutput(); err != nil {
		t.Fatalf("build the binary: %v\n%s", err, out)
	}
	return file
}
