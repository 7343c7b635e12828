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
	r := measured(t, playOurs, flags{Binary: build(t), Memory: "800MiB"})
	if r.Usage.Peak <= r.Usage.Before || r.Usage.CPU <= 0 {
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
	measured(t, playVerifiers, flags{Python: python, PythonOnce: 20})
}

func measured(t *testing.T, play player, f flags) result {
	t.Helper()
	f.Concurrency, f.Takes = 20, 3*time.Second
	m, err := startModel(t.Context(), f.Takes)
	if err != nil {
		t.Fatal(err)
	}
	defer m.stop()
	r, err := play(t.Context(), f, t.TempDir(), m)
	if err != nil {
		t.Fatal(err)
	}
	if r.Rollouts != 20 || r.Failed > 0 || r.AtOnce < 1 || r.AtOnce > 20 || r.Took <= 0 {
		t.Errorf("measured %+v", r)
	}
	return r
}

func build(t *testing.T) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "prl-stage")
	if out, err := exec.Command("go", "build", "-o", file, "../../../cmd/prl-stage").CombinedOutput(); err != nil {
		t.Fatalf("build the binary: %v\n%s", err, out)
	}
	return file
}
