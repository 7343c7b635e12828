package emitter

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

func orderedRun() pipeline.RunConfig {
	run := testRun()
	run.MaxAsyncLevel, run.MaxSteps = 0, 5
	return run
}

func (w *world) wave(step int64, wave, rollouts int) {
	w.t.Helper()
	w.request(&schemas.Request{Kind: schemas.RequestWave, Step: step, Wave: wave, Rollouts: rollouts})
}

func describe(tasks []*schemas.Task) string {
	var b strings.Builder
	for _, t := range tasks {
		fmt.Fprintf(&b, "%s group %d rollout %d task %d seed %d step %d wave %d [%d,%d]\n", t.Env, t.GroupID, t.RolloutIndex, t.TaskIndex, t.Seed, t.Step, t.Wave, t.WaveFirst, t.WaveLast)
	}
	return b.String()
}

func TestWaveCoversTheBatchWithWholeGroups(t *testing.T) {
	w := ready(t, orderedRun(), DefaultConfig(), testEnvs())
	w.tick(second)
	first, last, rollouts := w.tasks[0], w.tasks[len(w.tasks)-1], w.rolloutsOpen()
	if rollouts < 16 || rollouts-last.GroupSize >= 16 {
		t.Errorf("%d rollouts, the last group has %d", rollouts, last.GroupSize)
	}
	for _, task := range w.tasks {
		if task.Step != 1 || task.Wave != 1 || task.PinVersion == nil || *task.PinVersion != 0 || task.WaveFirst != first.GroupID || task.WaveLast != last.GroupID {
			t.Fatalf("task %+v", task)
		}
	}
	if n := len(w.tick(time.Minute)); n != 0 {
		t.Errorf("%d more tasks", n)
	}
}

func TestNextStepWaitsForVersionAndOutcomes(t *testing.T) {
	for name, versionFirst := range map[string]bool{"version first": true, "outcomes first": false} {
		t.Run(name, func(t *testing.T) {
			w := ready(t, orderedRun(), DefaultConfig(), testEnvs())
			for step := int64(1); step <= 5; step++ {
				n := len(w.tasks)
				w.tick(second)
				if len(w.tasks) == n || w.tasks[n].Step != step || *w.tasks[n].PinVersion != step-1 {
					t.Fatalf("step %d: %d new tasks", step, len(w.tasks)-n)
				}
				n = len(w.tasks)
				if versionFirst {
					w.table(policy(step, false))
				}
				for len(w.open) > 0 {
					w.tick(second)
					w.outcome(w.open[len(w.open)-1], step)
				}
				if !versionFirst {
					w.tick(second)
					w.table(policy(step, false))
				}
				if len(w.tasks) != n {
					t.Fatalf("step %d: the next one began too early", step)
				}
			}
			if n := len(w.tick(second)); n != 0 {
				t.Errorf("%d tasks above max_steps", n)
			}
		})
	}
}

func TestWaveRequestsAreHonouredOnce(t *testing.T) {
	w := ready(t, orderedRun(), DefaultConfig(), testEnvs())
	w.tick(second)
	count := func() int { n := len(w.tasks); w.tick(second); return len(w.tasks) - n }
	w.wave(1, 1, 5)
	w.wave(1, 3, 5)
	w.wave(2, 2, 5)
	w.wave(0, 2, 5)
	if n := count(); n != 0 {
		t.Fatalf("%d tasks for requests of other waves", n)
	}
	w.wave(1, 2, 5)
	w.wave(1, 2, 50)
	w.r.Restart(t)
	n := count()
	last := w.tasks[len(w.tasks)-1]
	if n < 5 || n-last.GroupSize >= 5 || last.Wave != 2 || last.WaveLast != last.GroupID || last.Step != 1 {
		t.Errorf("%d tasks for 5 missing rollouts, the last is %+v", n, last)
	}
	w.wave(1, 2, 5)
	if n := count(); n != 0 {
		t.Errorf("%d tasks for a request that was honoured", n)
	}
	var out pipeline.Out
	if err := w.core().Undecodable(pipeline.Record{Ref: pipeline.Ref{Topic: pipeline.TopicRequests}, Key: "wave/1/3"}, errors.New("x"), &out); err != nil {
		t.Fatal(err)
	}
	if n := count(); n < 16 || !out.Changed() {
		t.Errorf("%d tasks for an unreadable request", n)
	}
}

// What ordered mode emits depends on the order of ids alone: not on ticks, silence, or the order of outcomes.
func TestOrderedEmissionIsTheSameWheneverThingsCome(t *testing.T) {
	run := func(seed uint64) string {
		rng := rand.New(rand.NewPCG(seed, 0))
		w := ready(t, orderedRun(), DefaultConfig(), testEnvs())
		idle := func() {
			for range rng.IntN(5) {
				w.tick(time.Duration(rng.IntN(60_000)) * time.Millisecond)
			}
			if rng.IntN(3) == 0 {
				w.r.Restart(t)
			}
		}
		for step := int64(1); step <= 5; step++ {
			w.tick(second)
			idle()
			if step%2 == 0 {
				for len(w.open) > 0 { // nothing of the first wave survives
					w.outcome(w.open[rng.IntN(len(w.open))], 0)
				}
				w.wave(step, 2, 7)
				w.tick(second)
				idle()
			}
			early := rng.IntN(2) == 0
			if early {
				w.table(policy(step, false))
			}
			for len(w.open) > 0 {
				idle()
				w.outcome(w.open[rng.IntN(len(w.open))], step)
			}
			if !early {
				w.table(policy(step, false))
			}
		}
		return describe(w.tasks)
	}
	want := run(0)
	for seed := range uint64(10) {
		if got := run(seed); got != want {
			t.Fatalf("seed %d emits\n%s\nwant\n%s", seed, got, want)
		}
	}
}
