package eval

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

func stepOf(v schemas.Record) pipelinetest.Step {
	return pipelinetest.Step{Record: &pipeline.Record{Value: v}}
}

func short(evals map[string]Config) {
	for name, c := range evals {
		c.Timeout, c.GroupTimeout = pipeline.Duration(second), pipeline.Duration(40*second)
		evals[name] = c
	}
}

func TestDeadlineEndsAnExampleOnce(t *testing.T) {
	w := ready(t, short)
	w.policy(0, false)
	w.tick(second)
	w.feed(play(w.waiting[4], 0, 1)) // a whole example of words
	w.fates, w.waiting = nil, append(w.waiting[:4:4], w.waiting[5:]...)
	open := len(w.waiting)
	w.feed(play(w.waiting[0], 0, 1)) // one of two rollouts
	for range 41 {
		w.r.Restart(t)
		if w.tick(second); len(w.timeout) > 0 {
			break
		}
	}
	if len(w.timeout) != open {
		t.Fatalf("%d timed-out traces for %d rollouts", len(w.timeout), open)
	}
	for range 10 {
		w.tick(second)
	}
	if len(w.timeout) != open || len(w.fates) != 0 {
		t.Fatalf("%d timed-out traces, %d outcomes before they came back", len(w.timeout), len(w.fates))
	}
	for _, trace := range w.timeout {
		if err := trace.Validate(); err != nil || trace.Eval == "" || trace.Errors[0].Type != schemas.ErrorTimedOut || trace.PinVersion == nil || trace.Instance != "eval" {
			t.Errorf("trace %+v: %v", trace, err)
		}
		w.feed(trace)
	}
	first := w.fates[0]
	if first.Fate != schemas.FateEvaluated || first.Rollouts[0].Fate != schemas.FateEvaluated || first.Rollouts[1].Fate != schemas.FateTimedOut ||
		!strings.HasPrefix(first.Rollouts[1].Error, "timed_out: ") {
		t.Errorf("outcome %+v", first)
	}
	if w.fates[1].Fate != schemas.FateTimedOut {
		t.Errorf("outcome %+v", w.fates[1])
	}
	w.waiting = nil
	w.playAll(1)
	if len(w.results) != 2 || w.results[1].Episodes+w.results[1].Errored != 12 || w.results[1].Errored != 3 {
		t.Errorf("results %v %+v", w.sorted(), w.results)
	}
}

func TestFirstTraceWithoutErrorCounts(t *testing.T) {
	w := ready(t, nil)
	w.policy(2, false)
	w.tick(second)
	task := w.waiting[0]
	w.feed(failed(task, 0, "model"))
	w.feed(failed(task, 0, "model"))
	w.feed(play(task, 0, 0.25))
	w.r.Restart(t)
	w.feed(play(task, 0, 0.75))
	w.feed(failed(task, 0, "model"))
	w.feed(failed(task, 1, "model"))
	if len(w.fates) != 1 || w.fates[0].Rollouts[0].Reward == nil || *w.fates[0].Rollouts[0].Reward != 0.25 || w.fates[0].Rollouts[1].Fate != schemas.FateErrored {
		t.Errorf("outcomes %+v", w.fates)
	}
}

// story is a run of evals with duplicates, failures and deadlines.
func story(t *testing.T) *world {
	w := ready(t, short)
	rng := rand.New(rand.NewPCG(4, 4))
	w.policy(0, false)
	version := int64(0)
	for len(w.results) < 8 {
		w.tick(second * 3)
		if version < 7 && rng.IntN(3) == 0 {
			version++
			w.policy(version, version == 7)
		}
		for _, trace := range w.timeout {
			w.feed(trace)
		}
		w.timeout = nil
		for range min(len(w.waiting), 3) {
			i := rng.IntN(len(w.waiting))
			task := w.waiting[i]
			w.waiting = append(w.waiting[:i:i], w.waiting[i+1:]...)
			switch trace := play(task, task.RolloutIndex, float64(rng.IntN(3))/2); rng.IntN(8) {
			case 0: // vanishes
			case 1:
				w.feed(failed(task, task.RolloutIndex, "model"))
				w.feed(trace)
			case 2:
				w.feed(trace)
				w.feed(trace)
			default:
				w.feed(trace)
			}
		}
	}
	return w
}

func TestRestartAnywhere(t *testing.T) {
	w := story(t)
	if len(w.r.Poison) != 0 {
		t.Errorf("poison %v", w.r.Poison)
	}
	errored := int64(0)
	for _, r := range w.results {
		errored += r.Errored
	}
	if errored == 0 {
		t.Error("no deadline has passed")
	}
	pipelinetest.Check(t, w.r.New, w.steps)
}

func TestStateKeepsTheIDsOfAnEvalThatIsGone(t *testing.T) {
	w := ready(t, nil)
	w.policy(0, false)
	w.tick(second)
	run, em, envs, evals := sections()
	rebuild := func(evals map[string]Config) (*Core, error) {
		state, err := w.core().State()
		if err != nil {
			t.Fatal(err)
		}
		factory, err := New(run, em, envs, evals)
		if err != nil {
			t.Fatal(err)
		}
		core, err := factory(0, state)
		if err != nil {
			return nil, err
		}
		return core.(*Core), nil
	}
	without := map[string]Config{"words": evals["words"]}
	if _, err := rebuild(without); err == nil || !strings.Contains(err.Error(), "put [evals.balls] back") {
		t.Errorf("error %v while it runs", err)
	}
	w.playAll(1)
	core, err := rebuild(without)
	if err != nil {
		t.Fatal(err)
	}
	w.r.Core = core
	if core, err = rebuild(evals); err != nil {
		t.Fatal(err)
	}
	if ids := core.evals[0].ids; ids != 6 {
		t.Errorf("the ids go on from %d", ids)
	}
}
