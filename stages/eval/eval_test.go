package eval

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/schedule"
)

// sorted names the results so far.
func (w *world) sorted() []string {
	var names []string
	for _, r := range w.results {
		names = append(names, fmt.Sprintf("%s@%d", r.Eval, r.Version))
	}
	slices.Sort(names)
	return names
}

func TestTaskFields(t *testing.T) {
	w := ready(t, nil)
	w.policy(0, false)
	emitted := w.tick(second)
	if emitted[1].Topic != "tasks.catch" {
		t.Errorf("topic %s", emitted[1].Topic)
	}
	seed, zero := schedule.GroupSeed(1, "balls", 0), int64(0)
	want := &schemas.Task{
		Env: "catch", Eval: "balls", GroupSize: 2, RolloutIndex: 1, Split: "eval", GroupSeed: seed, Seed: schedule.RolloutSeed(seed, 1),
		PinVersion: &zero, TopP: 1, MaxTokens: 64, MaxRolloutTokens: 64, TimeoutMs: 300_000, MaxOffPolicySteps: -1,
	}
	if got := w.tasks[1]; !reflect.DeepEqual(got, want) || got.Validate() != nil {
		t.Errorf("%+v, want %+v", got, want)
	}
	w.playAll(1)
	var balls []*schemas.Task
	seeds := map[int64]bool{}
	for _, task := range w.tasks {
		if task.Eval == "balls" {
			balls = append(balls, task)
		}
		if seeds[task.Seed] {
			t.Errorf("seed %d comes again", task.Seed)
		}
		seeds[task.Seed] = true
	}
	if len(balls) != 12 || balls[10].GroupID != 5 || balls[10].TaskIndex != 1 {
		t.Errorf("%d tasks of balls; example 5 of 4 tasks: %+v", len(balls), balls[10])
	}
}

func TestInvariant_OneResult(t *testing.T) {
	w := ready(t, nil)
	if w.core().Pending() != 0 {
		t.Error("pending before any version")
	}
	w.policy(0, false)
	if n := w.core().Pending(); n != 2 {
		t.Errorf("%d pending", n)
	}
	w.playAll(1)
	if want := []string{"balls@0", "words@0"}; !slices.Equal(w.sorted(), want) || w.core().Pending() != 0 {
		t.Fatalf("results %v, want %v; %d pending", w.sorted(), want, w.core().Pending())
	}
	w.results = nil
	for v := range int64(7) { // several become due while one runs
		w.policy(v+1, v+1 == 7)
		if v == 2 {
			w.tick(second)
		}
	}
	want := []string{"balls@2", "balls@4", "balls@6", "balls@7", "words@3", "words@6", "words@7"}
	if n := w.core().Pending(); n != len(want) {
		t.Errorf("%d pending", n)
	}
	w.playAll(1)
	if got := w.sorted(); !slices.Equal(got, want) {
		t.Errorf("results %v, want %v", got, want)
	}
	if !slices.IsSortedFunc(w.results, func(a, b *schemas.EvalResult) int { return int(a.Version - b.Version) }) {
		t.Error("versions out of order")
	}
	if w.core().Pending() != 0 || len(w.r.Unfinished()) != 0 {
		t.Errorf("%d pending, %d traces unfinished", w.core().Pending(), len(w.r.Unfinished()))
	}
}

// The version with which a run begins is measured, also where it is one of another run.
func TestBeginningIsMeasured(t *testing.T) {
	w := ready(t, nil)
	w.table(&schemas.PolicyVersion{Version: 5, FromRun: "other"})
	w.playAll(1)
	if want := []string{"balls@5", "words@5"}; !slices.Equal(w.sorted(), want) {
		t.Errorf("results %v, want %v", w.sorted(), want)
	}
}

func TestInvariant_OneOutcome(t *testing.T) {
	w := ready(t, nil)
	w.policy(0, false)
	w.policy(2, false)
	for w.tick(second); len(w.waiting) > 0; w.tick(second) {
		task := w.waiting[0]
		w.waiting = w.waiting[1:]
		trace := play(task, task.RolloutIndex, 1)
		w.feed(trace)
		w.feed(trace) // again, before and after its example is decided
		w.feed(w.copyOf(0))
	}
	seen := map[string]int{}
	for _, o := range w.fates {
		seen[fmt.Sprint(o.Eval, "/", o.GroupID)]++
		if o.Fate != schemas.FateEvaluated || len(o.Rollouts) == 0 || o.Rollouts[0].Tokens != 13 {
			t.Errorf("outcome %+v", o)
		}
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%d outcomes of %s", n, name)
		}
	}
	if len(seen) != 6+3+6 || len(w.r.Unfinished()) != 0 || len(w.r.Poison) != 0 {
		t.Errorf("%d outcomes, %d unfinished, poison %v", len(seen), len(w.r.Unfinished()), w.r.Poison)
	}
}

// copyOf is the trace of the i-th task ever.
func (w *world) copyOf(i int) *schemas.Trace { return play(w.tasks[i], w.tasks[i].RolloutIndex, 1) }

func TestInvariant_Pinned(t *testing.T) {
	w := ready(t, nil)
	w.policy(0, false)
	w.tick(second)
	one, task := int64(1), w.waiting[0]
	for name, change := range map[string]func(*schemas.Trace){
		"pinned to another":  func(v *schemas.Trace) { v.PinVersion = &one },
		"not pinned":         func(v *schemas.Trace) { v.PinVersion = nil },
		"started earlier":    func(v *schemas.Trace) { v.PolicyStart = &one },
		"swapped on the way": func(v *schemas.Trace) { v.PolicyEnd = &one },
		"of another size":    func(v *schemas.Trace) { v.GroupSize = 3 },
		"of no such group":   func(v *schemas.Trace) { v.GroupID = 4000 },
		"of no such eval":    func(v *schemas.Trace) { v.Eval = "x" },
	} {
		before := len(w.r.Poison)
		trace := play(task, 0, 1)
		change(trace)
		w.feed(trace)
		if len(w.r.Poison) != before+1 {
			t.Errorf("a trace %s was accepted", name)
		}
	}
	w.r.Restart(t)
	w.playAll(1)
	for _, r := range w.results {
		if r.Errored != 0 || r.AvgAtK != 1 {
			t.Errorf("result %+v", r)
		}
	}
}

func TestEvalTracesOutsideTheCoreArePoison(t *testing.T) {
	w := ready(t, nil)
	w.step(stepOf(&schemas.Request{Kind: schemas.RequestWave}))
	if len(w.r.Poison) != 1 {
		t.Error("a request was accepted")
	}
}

func TestPermitsBoundEachEval(t *testing.T) {
	w := ready(t, nil)
	w.policy(0, false)
	open := map[string]int{}
	for w.tick(second); len(w.waiting) > 0; w.tick(second) {
		clear(open)
		for _, task := range w.waiting {
			open[task.Eval]++
		}
		if open["balls"] > 5 {
			t.Fatalf("%d rollouts in flight, 5 permits", open["balls"])
		}
		task := w.waiting[0]
		w.waiting = w.waiting[1:]
		w.feed(play(task, task.RolloutIndex, 1))
	}
	if len(w.results) != 2 {
		t.Errorf("results %v", w.sorted())
	}
}

// TestSuitesOfOneEnvironment has two evals of one environment, each with tasks, limits, deadlines and figures of its own.
func TestSuitesOfOneEnvironment(t *testing.T) {
	w := ready(t, func(evals map[string]Config) {
		easy, hard := DefaultConfig(), DefaultConfig()
		easy.Env, easy.Examples, easy.PassThreshold = "wordle", 10, 0.5
		hard.Env, hard.Examples, hard.First, hard.K, hard.Temperature, hard.Permits = "wordle", 4, 98, 2, 0.7, 4
		hard.MaxTokens, hard.MaxRolloutTokens, hard.Timeout = 8, 32, pipeline.Duration(second)
		clear(evals)
		evals["easy"], evals["hard"] = easy, hard
	})
	w.policy(0, false)
	w.playAll(0.5)
	tasks, count := map[string]string{}, map[string]int{}
	for _, task := range w.tasks {
		if task.RolloutIndex == 0 {
			tasks[task.Eval] += fmt.Sprint(task.TaskIndex, " ")
		}
		if count[task.Eval]++; task.Eval == "hard" && (task.MaxTokens != 8 || task.MaxRolloutTokens != 32 || task.Temperature != 0.7 || task.TimeoutMs != 1000) {
			t.Errorf("task %+v", task)
		}
	}
	if tasks["easy"] != "0 1 2 3 4 5 6 7 8 9 " || tasks["hard"] != "98 99 0 1 " || count["easy"] != 10 || count["hard"] != 8 {
		t.Errorf("tasks %v, %v", tasks, count)
	}
	if len(w.results) != 2 || w.results[0].PassAtK+w.results[1].PassAtK != 1 || w.results[0].AvgAtK != 0.5 {
		t.Errorf("results %+v", w.results)
	}
}

func TestWaitsForTheEnvironment(t *testing.T) {
	w := newWorld(t, nil)
	w.policy(0, false)
	w.table(&schemas.EnvInfo{Env: "catch", EvalTasks: 4})
	if n := len(w.tick(second)); n != 0 || w.core().Pending() != 2 {
		t.Errorf("%d tasks without wordle, %d pending", n, w.core().Pending())
	}
	w.table(&schemas.EnvInfo{Env: "wordle", EvalTasks: 4})
	if len(w.tick(second)) == 0 {
		t.Error("no tasks although all is there")
	}
	w = newWorld(t, nil)
	w.policy(0, false)
	w.table(&schemas.EnvInfo{Env: "catch", EvalTasks: 4})
	w.table(&schemas.EnvInfo{Env: "wordle"})
	var out pipeline.Out
	if err := w.core().Tick(w.now, &out); err == nil || !strings.Contains(err.Error(), "no held-out tasks") {
		t.Errorf("error %v", err)
	}
}

func TestGroupScoredEnvironment(t *testing.T) {
	w := ready(t, nil)
	w.table(&schemas.EnvInfo{Env: "catch", EvalTasks: 4, GroupScoring: true})
	w.policy(2, false)
	w.tick(second)
	task := w.waiting[0]
	if task.RolloutIndex != -1 || task.GroupSize != 2 || len(w.waiting) != 2 {
		t.Fatalf("%d tasks, %+v", len(w.waiting), task)
	}
	part := func(run string, index int, reward float64) {
		trace := play(task, index, reward)
		trace.GroupRun = run
		w.feed(trace)
	}
	part("a", 0, 0) // a server that died
	part("b", 1, 1)
	if len(w.fates) != 0 {
		t.Fatal("decided by parts of two runs")
	}
	w.r.Restart(t)
	part("b", 0, 1)
	part("a", 1, 0)
	if len(w.fates) != 1 || *w.fates[0].Rollouts[0].Reward != 1 || *w.fates[0].Rollouts[1].Reward != 1 {
		t.Errorf("outcomes %+v", w.fates)
	}
}

func TestValidateSaysWhatIsAllowed(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"":                                    func(*Config) {},
		"evals.balls.env is empty":            func(c *Config) { c.Env = "" },
		`no section [envs.chess]`:             func(c *Config) { c.Env = "chess" },
		"evals.balls.examples = 0: 1 to":      func(c *Config) { c.Examples = 0 },
		"evals.balls.k = 0: 1 to":             func(c *Config) { c.K = 0 },
		"evals.balls.first = -1":              func(c *Config) { c.First = -1 },
		"evals.balls.max_tokens = -1":         func(c *Config) { c.MaxTokens = -1 },
		"max_rollout_tokens = 65 is above":    func(c *Config) { c.MaxRolloutTokens = 65 },
		"evals.balls.temperature = -1":        func(c *Config) { c.Temperature = -1 },
		"evals.balls.interval = -1":           func(c *Config) { c.Interval = -1 },
		"evals.balls.permits = 1: at least k": func(c *Config) { c.Permits = 1 },
		"evals.balls.timeout = 0s":            func(c *Config) { c.Timeout = 0 },
		"evals.balls.group_timeout = 5m0s":    func(c *Config) { c.GroupTimeout = c.Timeout },
	} {
		run, em, envs, evals := sections()
		c := evals["balls"]
		change(&c)
		evals["balls"] = c
		err := Validate(run, em, envs, evals)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
