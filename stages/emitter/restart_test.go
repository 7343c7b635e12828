package emitter

import (
	"math/rand/v2"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
)

func TestRestartAnywhereAsynchronous(t *testing.T) {
	envs := testEnvs()
	for name, c := range envs {
		c.Timeout, c.GroupTimeout = pipeline.Duration(second), pipeline.Duration(32*second)
		envs[name] = c
	}
	w := newWorld(t, testRun(), DefaultConfig(), envs)
	w.record = true
	w.table(policy(0, false))
	w.table(info("catch", 10))
	w.table(info("wordle", 7))
	rng := rand.New(rand.NewPCG(5, 5))
	for range 30 {
		w.table(info("catch", 10)) // still alive
		w.table(info("wordle", 7))
		w.live(rng, 8)
	}
	if len(w.traces) == 0 {
		t.Error("no deadline has passed")
	}
	w.table(policy(100, true))
	w.tick(second)
	w.tick(second)
	pipelinetest.Check(t, w.r.New, w.steps)
}

func TestRestartAnywhereOrdered(t *testing.T) {
	w := newWorld(t, orderedRun(), DefaultConfig(), testEnvs())
	w.record = true
	w.table(info("catch", 10))
	w.table(policy(0, false))
	w.table(info("wordle", 7))
	for step := int64(1); step <= 3; step++ {
		w.tick(second)
		w.refill(w.open[0], 0, 1)
		w.wave(step, 2, 5)
		w.tick(second)
		w.wave(step, 2, 5)
		for len(w.open) > 0 {
			w.outcome(w.open[len(w.open)/2], step)
		}
		w.table(policy(step, false))
	}
	w.tick(second)
	w.table(policy(4, true))
	w.tick(second)
	pipelinetest.Check(t, w.r.New, w.steps)
}

func TestInvariant_NothingTwice(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 9))
		w := ready(t, testRun(), DefaultConfig(), testEnvs())
		for range 100 {
			w.live(rng, 5)
			w.table(info("catch", 10))
			w.table(info("wordle", 7))
			w.r.Restart(t)
		}
		type name struct {
			group          int64
			index, attempt int
		}
		emitted := map[name]bool{}
		for _, task := range w.tasks {
			n := name{task.GroupID, task.RolloutIndex, task.Attempt}
			if emitted[n] {
				t.Fatalf("seed %d: %+v was emitted twice", seed, n)
			}
			emitted[n] = true
		}
		served, epoch := map[string]map[int64]bool{}, map[string]int64{"catch": 10, "wordle": 7}
		for id := range int64(len(w.groups)) {
			task := w.groups[id]
			if task == nil {
				t.Fatalf("seed %d: group %d was skipped", seed, id)
			}
			for i := range task.GroupSize {
				if !emitted[name{id, i, 0}] {
					t.Fatalf("seed %d: rollout %d of group %d was skipped", seed, i, id)
				}
			}
			if served[task.Env] == nil || int64(len(served[task.Env])) == epoch[task.Env] {
				served[task.Env] = map[int64]bool{}
			}
			if served[task.Env][task.TaskIndex] {
				t.Fatalf("seed %d: task %d of %s was served twice in an epoch", seed, task.TaskIndex, task.Env)
			}
			served[task.Env][task.TaskIndex] = true
		}
	}
}
