package emitter

import (
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

func TestStateIsSmall(t *testing.T) {
	run, cfg, envs := testRun(), DefaultConfig(), testEnvs()
	run.BatchSize, cfg.TasksPerTick = 8000, 100_000
	c := envs["catch"]
	c.GroupSize = 2000
	envs["catch"] = c
	w := newWorld(t, run, cfg, envs)
	w.table(policy(0, false))
	w.table(info("catch", 1<<50))
	w.table(info("wordle", 1<<50))
	empty, err := w.core().State()
	if err != nil {
		t.Fatal(err)
	}
	for range 4000 {
		w.tick(second)
	}
	for range 1000 { // 1000 s old
		w.tick(second)
	}
	state, err := w.core().State()
	if err != nil {
		t.Fatal(err)
	}
	if per := float64(len(state)-len(empty)) / float64(w.core().Open()); per > 24 {
		t.Errorf("%d open groups take %.1f bytes each", w.core().Open(), per)
	}
	w.r.Restart(t)
}

func TestStateNamesAnEnvironmentThatIsGone(t *testing.T) {
	w := ready(t, testRun(), DefaultConfig(), testEnvs())
	w.tick(second)
	state, err := w.core().State()
	if err != nil {
		t.Fatal(err)
	}
	envs := testEnvs()
	delete(envs, "wordle")
	factory, err := New(testRun(), DefaultConfig(), envs)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := factory(0, state); err == nil || !strings.Contains(err.Error(), "put [envs.wordle] back") {
		t.Errorf("error %v", err)
	}
	if _, err := factory(1, nil); err == nil {
		t.Error("a second partition was accepted")
	}
}

func FuzzState(f *testing.F) {
	w := ready(f, orderedRun(), DefaultConfig(), testEnvs())
	w.tick(second)
	w.refill(0, 1, 1)
	state, err := w.core().State()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(state)
	f.Add(state[:len(state)-3])
	f.Add(append(state[:60:60], 0xff, 0xff, 0xff))
	f.Fuzz(func(t *testing.T, state []byte) {
		factory, err := New(orderedRun(), DefaultConfig(), testEnvs())
		if err != nil {
			t.Fatal(err)
		}
		core, err := factory(0, state)
		if err != nil {
			return
		}
		// What is accepted is written again as it was understood.
		again, err := core.State()
		if err != nil {
			t.Fatal(err)
		}
		var other pipeline.Core
		if other, err = factory(0, again); err != nil {
			t.Fatalf("%x was accepted, %x is not: %v", state, again, err)
		}
		third, err := other.State()
		if err != nil || string(third) != string(again) {
			t.Fatalf("%x becomes %x: %v", again, third, err)
		}
	})
}
