package emitter

import (
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

func TestInvariant_OneEnding(t *testing.T) {
	for name, restart := range map[string]bool{"without restarts": false, "with restarts": true} {
		t.Run(name, func(t *testing.T) {
			envs := testEnvs()
			c := envs["catch"]
			c.Timeout, c.GroupTimeout = pipeline.Duration(10*second), pipeline.Duration(50*second)
			envs["catch"] = c
			w := ready(t, testRun(), DefaultConfig(), envs)
			w.tick(second)
			step := func(n int) {
				for range n {
					w.tick(second)
					if restart {
						w.r.Restart(t)
					}
				}
			}
			rollouts := func(env string) (n int) {
				for _, id := range w.open {
					if env == "" || w.groups[id].Env == env {
						n += w.groups[id].GroupSize
					}
				}
				return n
			}
			w.refill(w.open[0], 0, 1)
			step(50)
			if len(w.traces) != 0 {
				t.Fatalf("%d traces at the deadline", len(w.traces))
			}
			step(1)
			if len(w.traces) != rollouts("catch") || len(w.traces) == 0 {
				t.Fatalf("%d timed-out traces for %d rollouts", len(w.traces), rollouts("catch"))
			}
			step(20)
			if n := w.refill(w.traces[0].GroupID, 1, 1); n != 0 {
				t.Errorf("%d refills for a group that timed out", n)
			}
			w.table(policy(7, true))
			step(20)
			seen := map[[2]int64]bool{}
			for _, trace := range w.traces {
				key := [2]int64{trace.GroupID, int64(trace.RolloutIndex)}
				task := w.groups[trace.GroupID]
				if err := trace.Validate(); err != nil || seen[key] || trace.TaskIndex != task.TaskIndex || trace.GroupSeed != task.GroupSeed ||
					trace.EnvVersion != "v-"+task.Env || trace.Instance != "emitter" || trace.GroupSize != task.GroupSize || trace.Split != "train" {
					t.Errorf("trace %+v (%v) of task %+v", trace, err, task)
				}
				seen[key] = true
				if want := map[string]string{"catch": schemas.ErrorTimedOut, "wordle": schemas.ErrorCancelled}[task.Env]; trace.Errors[0].Type != want {
					t.Errorf("%s trace of %s", trace.Errors[0].Type, task.Env)
				}
			}
			if len(seen) != rollouts("") {
				t.Errorf("%d traces for %d open rollouts", len(seen), rollouts(""))
			}
			if w.core().Done() {
				t.Error("done with open groups")
			}
			tasks := len(w.tasks)
			for len(w.open) > 0 {
				w.outcome(w.open[0], 0)
			}
			step(5)
			if !w.core().Done() || w.core().Open() != 0 || len(w.tasks) != tasks {
				t.Errorf("done: %v, %d open, %d tasks after the end", w.core().Done(), w.core().Open(), len(w.tasks)-tasks)
			}
		})
	}
}

func TestTimeInWhichTheEmitterWasDownDoesNotAge(t *testing.T) {
	w := ready(t, testRun(), DefaultConfig(), testEnvs())
	w.tick(second)
	for range 100 { // hours apart: each counts as a second
		w.r.Restart(t)
		w.tick(time.Hour)
	}
	w.now = w.now.Add(-500 * time.Hour) // nor does a clock that is set back
	w.tick(second)
	if len(w.traces) != 0 {
		t.Errorf("%d timed-out traces", len(w.traces))
	}
	if ran := w.core().clock.Ran; ran != 100_000 {
		t.Errorf("the emitter ran for %d ms", ran)
	}
}

// TestWaiting names what is missing, one thing after the other.
func TestWaiting(t *testing.T) {
	w := newWorld(t, testRun(), DefaultConfig(), testEnvs())
	for _, c := range []struct {
		come schemas.Record
		want string
	}{
		{nil, "policy version 0 (of --stage trainer)"},
		{policy(0, false), "servers of the environments catch, wordle (--stage envserver --env NAME)"},
		{info("catch", 10), "servers of the environments wordle (--stage envserver --env NAME)"},
		{info("wordle", 10), ""},
	} {
		if c.come != nil {
			w.table(c.come)
		}
		if got := w.core().Waiting(); got != c.want {
			t.Errorf("waits for %q, want %q", got, c.want)
		}
	}
}
