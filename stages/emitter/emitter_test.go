package emitter

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/schedule"
)

const second = time.Second

func TestWaitsForPolicyAndAllEnvironments(t *testing.T) {
	tables := []schemas.Record{policy(0, false), info("catch", 10), info("wordle", 7)}
	for missing := range tables {
		w := newWorld(t, testRun(), DefaultConfig(), testEnvs())
		for i, v := range tables {
			if i != missing {
				w.table(v)
			}
		}
		if got := w.tick(second); len(got) != 0 {
			t.Errorf("%d tasks without %T %d", len(got), tables[missing], missing)
		}
		w.table(tables[missing])
		if got := w.tick(second); len(got) == 0 {
			t.Error("no task although all is there")
		}
	}
}

func TestTaskFields(t *testing.T) {
	envs := testEnvs()
	c := envs["catch"]
	c.Ratio, c.MaxTokens, c.Temperature = ratio(1), 9, 0.7
	envs["catch"] = c
	o := envs["wordle"]
	o.Ratio = ratio(0)
	envs["wordle"] = o
	w := ready(t, testRun(), DefaultConfig(), envs)
	emitted := w.tick(second)
	got := emitted[1]
	seed := schedule.GroupSeed(1, "", 0)
	want := &schemas.Task{
		Env: "catch", GroupSize: 4, RolloutIndex: 1, Split: "train", TaskIndex: w.tasks[0].TaskIndex, GroupSeed: seed,
		Seed: schedule.RolloutSeed(seed, 1), Temperature: 0.7, TopP: 1, MaxTokens: 9, MaxRolloutTokens: 64, TimeoutMs: 300_000, MaxOffPolicySteps: 9,
	}
	if got.Topic != "tasks.catch" || got.Partition != 0 || !reflect.DeepEqual(got.Value, want) {
		t.Errorf("%s/%d %+v, want %+v", got.Topic, got.Partition, got.Value, want)
	}
	if err := want.Validate(); err != nil {
		t.Error(err)
	}
	if len(emitted) != 3*16+4 {
		t.Errorf("%d tasks in the first tick, want all permits", len(emitted))
	}
	seeds := map[int64]bool{}
	for _, task := range w.tasks {
		if task.Seed < 0 || seeds[task.Seed] {
			t.Errorf("seed %d comes again, or is negative", task.Seed)
		}
		seeds[task.Seed] = true
	}
}

func TestInvariant_Permits(t *testing.T) {
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 0))
		run, cfg, envs := testRun(), DefaultConfig(), testEnvs()
		run.MaxAsyncLevel = 1 + rng.IntN(3)
		cfg.Permits = run.BatchSize + 4 + rng.IntN(20)
		cfg.TasksPerTick = 1 + rng.IntN(30)
		w := ready(t, run, cfg, envs)
		for range 60 {
			w.live(rng, 5)
			if rng.IntN(4) == 0 {
				w.r.Restart(t)
			}
			if n := w.rolloutsOpen(); n > cfg.Permits || n != w.core().held {
				t.Fatalf("seed %d: %d rollouts open, the emitter counts %d, %d permits", seed, n, w.core().held, cfg.Permits)
			}
			if w.core().Open() != len(w.open) {
				t.Fatalf("seed %d: %d groups open, the emitter counts %d", seed, len(w.open), w.core().Open())
			}
		}
		if len(w.groups) < 50 {
			t.Errorf("seed %d: only %d groups", seed, len(w.groups))
		}
	}
}

func TestPermitsAreUsedUpWhateverTheShares(t *testing.T) {
	// With every environment alive, the bound on one's share never leaves room for another group unused.
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 1))
		envs := map[string]EnvConfig{}
		largest := 0
		for i := range 1 + rng.IntN(8) {
			c := DefaultEnvConfig()
			c.GroupSize, c.Ratio = 1+rng.IntN(20), ratio(0.01+rng.Float64())
			largest = max(largest, c.GroupSize)
			envs[string(rune('a'+i))] = c
		}
		w := newWorld(t, testRun(), DefaultConfig(), envs)
		w.table(policy(0, false))
		for name := range envs {
			w.table(info(name, 5))
		}
		w.tick(second)
		if free := w.core().permits - w.rolloutsOpen(); free >= largest {
			t.Errorf("seed %d: %d of %d permits unused, groups of at most %d", seed, free, w.core().permits, largest)
		}
	}
}

func TestLargeGroupsAreNotStarved(t *testing.T) {
	envs := testEnvs()
	for name, size := range map[string]int{"catch": 16, "wordle": 1} {
		c := envs[name]
		c.GroupSize, c.Ratio = size, ratio(1)
		envs[name] = c
	}
	w := ready(t, testRun(), DefaultConfig(), envs)
	rng := rand.New(rand.NewPCG(1, 1))
	for range 3000 {
		w.tick(100 * time.Millisecond)
		w.table(info("catch", 10))
		w.table(info("wordle", 10))
		w.outcome(w.open[rng.IntN(len(w.open))], 0)
	}
	large := 0
	for _, task := range w.groups {
		if task.Env == "catch" {
			large++
		}
	}
	if share := float64(large) / float64(len(w.groups)); share < 0.45 {
		t.Errorf("%.2f of the groups are large, half of the mix is", share)
	}
}

func TestStopsAheadOfTheTrainer(t *testing.T) {
	w := ready(t, testRun(), DefaultConfig(), testEnvs())
	w.tick(second)
	pack := func(step int64) int {
		w.outcome(w.open[0], step)
		return len(w.tick(second))
	}
	if pack(1) == 0 {
		t.Error("no tasks while one packed step waits")
	}
	if n := pack(2); n != 0 {
		t.Errorf("%d tasks while two packed steps wait", n)
	}
	w.table(policy(1, false))
	if len(w.tick(second)) == 0 {
		t.Error("no tasks after the trainer caught up")
	}
	w.table(policy(99, false))
	if n := pack(100); n != 0 {
		t.Errorf("%d tasks after the last step was packed", n)
	}
}

// TestNothingIsEmittedThatWouldBeStale: a group begun now is trained in the step that comes after those packed and those
// that what is open will fill.
func TestNothingIsEmittedThatWouldBeStale(t *testing.T) {
	run, cfg := testRun(), DefaultConfig()
	run.MaxAsyncLevel, run.MaxOffPolicySteps, cfg.Permits = 1, 1, 200
	w := ready(t, run, cfg, testEnvs())
	w.tick(second)
	// With two batches open, the next group would be in step 3, two steps after version 0.
	if n := w.rolloutsOpen(); n < 2*run.BatchSize || n >= 2*run.BatchSize+4 {
		t.Errorf("%d rollouts open, want two batches of %d", n, run.BatchSize)
	}
	w.outcome(w.open[0], 1)
	if n := len(w.tick(second)); n != 0 {
		t.Errorf("%d tasks for step 3 at version 0", n)
	}
	w.table(policy(1, false))
	if len(w.tick(second)) == 0 {
		t.Error("no tasks for step 3 at version 1")
	}
}

func TestLostEnvironmentGetsNothing(t *testing.T) {
	w := ready(t, testRun(), DefaultConfig(), testEnvs())
	drain := func() map[string]int {
		for len(w.open) > 0 {
			w.outcome(w.open[0], 0)
		}
		count := map[string]int{}
		for _, e := range w.tick(second) {
			count[e.Value.(*schemas.Task).Env] += 1
		}
		return count
	}
	if n := drain(); n["catch"] == 0 || n["wordle"] == 0 {
		t.Fatalf("tasks %v", n)
	}
	state := &schemas.StageState{Stage: "envserver", Topic: "tasks.wordle", Instance: "s", Concurrency: 4}
	for range 40 {
		w.table(state)
		w.tick(second)
	}
	n := drain()
	if n["catch"] != 0 || n["wordle"] < 45 {
		t.Errorf("tasks %v while catch is lost; wordle should have nearly all of the 52 permits", n)
	}
	state.Topic = "tasks.catch"
	w.table(state)
	if n := drain(); n["catch"] == 0 {
		t.Errorf("tasks %v after catch came back", n)
	}
	for range 40 {
		w.tick(second)
	}
	if n := drain(); len(n) != 0 {
		t.Errorf("tasks %v with all environments lost", n)
	}
}

func TestShareIsBounded(t *testing.T) {
	run, cfg := testRun(), DefaultConfig()
	cfg.Permits = 80
	envs := testEnvs()
	for name, r := range map[string]float64{"catch": 1, "wordle": 9} {
		c := envs[name]
		c.Ratio, c.GroupSize = ratio(r), 4
		envs[name] = c
	}
	w := ready(t, run, cfg, envs)
	for range 2000 {
		w.tick(second)
		w.table(info("catch", 10))
		w.table(info("wordle", 10))
		held := 0
		var quick int64 = -1
		for _, id := range w.open {
			if w.groups[id].Env == "catch" {
				held += 4
			} else {
				quick = id
			}
		}
		if held > 16 {
			t.Fatalf("an environment with a tenth of the mix holds %d of 80 permits", held)
		}
		w.outcome(quick, 0) // catch never gets an outcome
	}
	if n := w.core().envs[0].held; n != 16 {
		t.Errorf("the stuck environment holds %d", n)
	}
}

func TestRefills(t *testing.T) {
	w := ready(t, testRun(), DefaultConfig(), testEnvs())
	w.tick(second)
	first := *w.tasks[1]
	if n := w.refill(0, 1, 1); n != 1 {
		t.Fatalf("%d tasks", n)
	}
	again := *w.tasks[len(w.tasks)-1]
	if again.Attempt != 1 {
		t.Errorf("attempt %d", again.Attempt)
	}
	again.Attempt = 0
	if !reflect.DeepEqual(first, again) {
		t.Errorf("refilled as %+v, was %+v", again, first)
	}
	w.r.Restart(t)
	for name, n := range map[string]int{
		"the same again": w.refill(0, 1, 1), "an older attempt": w.refill(0, 1, 0),
		"no such rollout": w.refill(0, 4, 1), "the whole of a group of single tasks": w.refill(0, -1, 1), "no such group": w.refill(999, 0, 1),
	} {
		if n != 0 {
			t.Errorf("%s: %d tasks", name, n)
		}
	}
	if n := w.refill(0, 1, 2); n != 1 {
		t.Errorf("%d tasks for the next attempt", n)
	}
	w.outcome(0, 0)
	if n := w.refill(0, 2, 1); n != 0 {
		t.Errorf("%d tasks for a decided group", n)
	}
}

// An attempt above max_attempts is answered with its failure: whoever asked for it waits for it.
func TestRefusedRefill(t *testing.T) {
	for _, whole := range []bool{false, true} {
		t.Run(fmt.Sprint("whole groups ", whole), func(t *testing.T) {
			envs := testEnvs()
			delete(envs, "wordle")
			w := newWorld(t, testRun(), DefaultConfig(), envs)
			w.table(policy(0, false))
			v := info("catch", 10)
			v.GroupScoring = whole
			w.table(v)
			w.tick(second)
			tasks, index, want := len(w.tasks), 1, []int{1}
			run := ""
			if whole {
				index, want, run = -1, []int{0, 1, 2, 3}, "emitter"
			}
			if n := w.refill(0, index, 3); n != len(want) || len(w.traces) != n || len(w.tasks) != tasks {
				t.Fatalf("%d records, %d traces, %d new tasks", n, len(w.traces), len(w.tasks)-tasks)
			}
			for i, trace := range w.traces {
				if err := trace.Validate(); err != nil || trace.GroupID != 0 || trace.RolloutIndex != want[i] || trace.Attempt != 3 || trace.GroupRun != run ||
					trace.EnvVersion != "v-catch" || trace.Errors[0] != (schemas.TraceError{Type: "attempts", Message: "no more attempts: emitter.max_attempts = 2"}) {
					t.Errorf("%+v (%v)", trace, err)
				}
			}
			if n := w.refill(0, index, 2); n != 1 || len(w.tasks) != tasks+1 {
				t.Errorf("%d records, %d new tasks for an attempt that is allowed", n, len(w.tasks)-tasks)
			}
			w.outcome(0, 0)
			if n := w.refill(0, index, 3); n != 0 {
				t.Errorf("%d records for a decided group", n)
			}
		})
	}
}

func TestGroupScoredEnvironmentGetsOneTask(t *testing.T) {
	envs := testEnvs()
	delete(envs, "wordle")
	w := newWorld(t, testRun(), DefaultConfig(), envs)
	w.table(policy(0, false))
	v := info("catch", 10)
	v.GroupScoring = true
	w.table(v)
	w.tick(second)
	if len(w.tasks) != 52/4 {
		t.Errorf("%d tasks for 52 permits and groups of 4", len(w.tasks))
	}
	for _, task := range w.tasks {
		if task.RolloutIndex != -1 || task.GroupSize != 4 {
			t.Fatalf("rollout %d of %d", task.RolloutIndex, task.GroupSize)
		}
	}
	if w.refill(0, 0, 1) != 0 || w.refill(0, -1, 1) != 1 {
		t.Error("a group-scored group is refilled whole")
	}
	w.table(policy(1, true))
	w.tick(second)
	if len(w.traces) != 52 || w.traces[3].RolloutIndex != 3 || w.traces[3].Attempt != 1 {
		t.Errorf("%d traces at the end", len(w.traces))
	}
}

func TestTasksPerTickAndTickRate(t *testing.T) {
	cfg := DefaultConfig()
	cfg.TasksPerTick = 10
	w := ready(t, testRun(), cfg, testEnvs())
	emitting := 0
	for range 100 {
		n := len(w.tick(20 * time.Millisecond))
		if n > 10 {
			t.Fatalf("%d tasks in a tick", n)
		}
		if n > 0 {
			emitting++
		}
		for len(w.open) > 0 {
			w.outcome(w.open[0], 0)
		}
	}
	if emitting > 20 || emitting < 15 {
		t.Errorf("%d emitting ticks in 2 s", emitting)
	}
}

func TestInvariant_EvalsChangeNothing(t *testing.T) {
	run := func(evals bool) string {
		w := ready(t, testRun(), DefaultConfig(), testEnvs())
		for range 20 {
			w.tick(second)
			if evals {
				step := int64(50)
				for id := range int64(100) {
					w.feed(pipeline.TopicOutcomes, w.offset(), &schemas.GroupOutcome{Env: "catch", Eval: "e", GroupID: id, Fate: schemas.FateEvaluated, Step: &step})
				}
			}
			w.outcome(w.open[0], 0)
		}
		return describe(w.tasks)
	}
	if run(true) != run(false) {
		t.Error("outcomes of evals change what is emitted")
	}
}

func TestUndecodableOutcomeClosesItsGroup(t *testing.T) {
	w := ready(t, testRun(), DefaultConfig(), testEnvs())
	w.tick(second)
	open := w.core().Open()
	for _, key := range []string{"3", "e/4", "junk", "wave/1/2"} {
		var out pipeline.Out
		if err := w.core().Undecodable(pipeline.Record{Ref: pipeline.Ref{Topic: pipeline.TopicOutcomes}, Key: key}, errors.New("x"), &out); err != nil {
			t.Fatal(err)
		}
	}
	if _, found := w.core().find(3); found || w.core().Open() != open-1 {
		t.Errorf("%d groups open of %d", w.core().Open(), open)
	}
}
