package eval

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// handWorld is all around an eval by hand: it feeds one and looks at what comes out.
type handWorld struct {
	t       *testing.T
	plan    Plan
	h       *hand
	now     time.Time
	offset  int64
	held    past            // what the topics hold
	waiting []*schemas.Task // emitted, not played
	emitted []*schemas.Task // by the hand there is now
	results []*schemas.EvalResult
}

// byHand is an eval by hand of version 2 with the settings of the suite "balls".
func byHand(t *testing.T, change func(p *Plan)) *handWorld {
	t.Helper()
	_, _, _, evals := sections()
	w := &handWorld{t: t, now: time.UnixMilli(1_700_000_000_000), held: past{decided: map[int64]bool{}},
		plan: Plan{Name: pipeline.ByHandPrefix + "x", Suite: "balls", Config: evals["balls"], Version: 2}}
	if change != nil {
		change(&w.plan)
	}
	w.resume()
	return w
}

// resume makes a new core from what the topics hold.
func (w *handWorld) resume() {
	w.t.Helper()
	run, _, envs, _ := sections()
	h, err := newHand(run, envs, w.plan, w.held)
	if err != nil {
		w.t.Fatal(err)
	}
	w.h, w.emitted = h, nil
	w.announce(false)
}

func (w *handWorld) announce(whole bool) {
	w.t.Helper()
	info := &schemas.EnvInfo{Env: "catch", Version: "1", EvalTasks: 4, GroupScoring: whole, Baselines: map[string]float64{"random": 0.3}}
	for _, v := range []schemas.Record{&schemas.PolicyVersion{Version: 0}, &schemas.PolicyVersion{Version: 4, Final: true}, info} {
		if err := w.h.core.Table(pipeline.Record{Value: v}); err != nil {
			w.t.Fatal(err)
		}
	}
}

func (w *handWorld) took(out pipeline.Out) {
	for _, e := range out.Emitted {
		switch v := e.Value.(type) {
		case *schemas.Task:
			w.waiting, w.emitted, w.held.tasks = append(w.waiting, v), append(w.emitted, v), append(w.held.tasks, v)
		case *schemas.Trace:
			w.feed(v)
		case *schemas.GroupOutcome:
			if w.held.decided[v.GroupID] {
				w.t.Errorf("a second outcome of group %d", v.GroupID)
			}
			w.held.decided[v.GroupID] = true
		case *schemas.EvalResult:
			w.results = append(w.results, v)
		}
	}
}

func (w *handWorld) tick(d time.Duration) {
	w.t.Helper()
	w.now = w.now.Add(d)
	var out pipeline.Out
	if err := w.h.tick(w.now, &out); err != nil {
		w.t.Fatal(err)
	}
	w.took(out)
}

func (w *handWorld) feed(v *schemas.Trace) {
	w.t.Helper()
	w.offset++
	w.held.traces = append(w.held.traces, keep(v))
	var out pipeline.Out
	if err := w.h.process(pipeline.Record{Ref: pipeline.Ref{Topic: pipeline.TopicEvalTraces, Offset: w.offset}, Value: v}, &out); err != nil {
		w.t.Error(err)
	}
	w.took(out)
}

// scripted is the trace of a task as one and the same policy plays it: its reward follows from its seed.
func scripted(task *schemas.Task) *schemas.Trace {
	trace := play(task, task.RolloutIndex, float64(task.Seed%5)/4)
	trace.Attempt, trace.Policy = task.Attempt, task.Policy
	return trace
}

// next plays up to n tasks that wait, or all that come with n < 0.
func (w *handWorld) next(n int, with func(*schemas.Task) *schemas.Trace) {
	w.t.Helper()
	for w.tick(second); n != 0 && len(w.waiting) > 0; n-- {
		task := w.waiting[0]
		w.waiting = w.waiting[1:]
		w.feed(with(task))
		w.tick(second)
	}
}

func (w *handWorld) result() *schemas.EvalResult {
	w.t.Helper()
	if len(w.results) == 0 {
		w.t.Fatal("no result")
	}
	return w.results[len(w.results)-1]
}

// TestByHandEqualsTheStage measures the same version twice, with the stage and by hand: the tasks and the figures are the
// same but for the name.
func TestByHandEqualsTheStage(t *testing.T) {
	stage := ready(t, nil)
	stage.policy(2, false)
	for stage.tick(second); len(stage.waiting) > 0; stage.tick(second) {
		task := stage.waiting[0]
		stage.waiting = stage.waiting[1:]
		stage.feed(scripted(task))
	}
	hand := byHand(t, nil)
	hand.next(-1, scripted)
	want := *stage.results[0]
	want.Eval = hand.plan.Name
	if got := hand.result(); !reflect.DeepEqual(got, &want) {
		t.Errorf("by hand %+v\nthe stage %+v", got, &want)
	}
	for i, task := range stage.tasks {
		want := *task
		want.Eval = hand.plan.Name
		if !reflect.DeepEqual(hand.emitted[i], &want) {
			t.Errorf("task %+v\nof the stage %+v", hand.emitted[i], &want)
		}
	}
	if len(hand.held.decided) != 6 || want.AvgStderr == 0 {
		t.Errorf("%d outcomes of 6 examples, standard error %v", len(hand.held.decided), want.AvgStderr)
	}
}

func TestByHandKeepsToItsPermits(t *testing.T) {
	w := byHand(t, nil)
	w.tick(second)
	if len(w.waiting) != 4 { // 5 permits, two rollouts each
		t.Errorf("%d tasks at once", len(w.waiting))
	}
}

// TestResume leaves an eval in the middle, with rollouts that failed, and goes on: only what failed or was never asked for
// is asked for, and the result is that of an eval that was never left.
func TestResume(t *testing.T) {
	whole := byHand(t, nil)
	whole.next(-1, scripted)
	want := whole.result()

	w := byHand(t, nil)
	played := 0
	w.next(5, func(task *schemas.Task) *schemas.Trace { // examples 0 and 1, and half of 2
		if played++; played == 2 {
			trace := failed(task, task.RolloutIndex, "model")
			trace.Attempt = task.Attempt
			return trace
		}
		return scripted(task)
	})
	asked := len(w.emitted)
	if len(w.waiting) == 0 || len(w.held.decided) != 1 {
		t.Fatalf("%d rollouts are in flight, %d examples decided", len(w.waiting), len(w.held.decided))
	}
	w.resume()
	w.tick(second)
	w.next(-1, scripted) // those in flight too: a server had them all the time
	if len(w.emitted) != 12-asked+1 {
		t.Errorf("%d tasks, %d were asked for before, 1 failed, of 12", len(w.emitted), asked)
	}
	again := 0
	for _, task := range w.emitted {
		if task.Attempt > 0 {
			again++
			if task.GroupID != 0 || task.RolloutIndex != 1 || task.Attempt != 1 || task.Seed != whole.emitted[1].Seed {
				t.Errorf("asked again for %+v", task)
			}
		}
	}
	if again != 1 {
		t.Errorf("%d tasks were asked for again", again)
	}
	if got := w.result(); !reflect.DeepEqual(got, want) || len(w.results) != 1 {
		t.Errorf("%d results, %+v, want %+v", len(w.results), got, want)
	}
	w.resume()
	w.next(-1, scripted)
	if len(w.emitted) != 0 {
		t.Errorf("%d tasks though nothing is missing", len(w.emitted))
	}
}

// TestResumeOwesOutcomes goes on after a crash between the traces and the outcomes.
func TestResumeOwesOutcomes(t *testing.T) {
	w := byHand(t, nil)
	w.next(-1, scripted)
	want := w.result()
	delete(w.held.decided, 3)
	w.results = nil
	w.resume()
	w.tick(second)
	if !w.held.decided[3] || len(w.emitted) != 0 || !reflect.DeepEqual(w.result(), want) {
		t.Errorf("outcomes %v, %d tasks, results %v", w.held.decided, len(w.emitted), w.results)
	}
}

// TestResumeAsksForNothingThatCame has a rollout come late, before what failed is asked for again.
func TestResumeAsksForNothingThatCame(t *testing.T) {
	w := byHand(t, func(p *Plan) { p.Config.Examples = 1 })
	w.next(-1, func(task *schemas.Task) *schemas.Trace { return failed(task, task.RolloutIndex, "model") })
	w.resume()
	w.feed(scripted(w.held.tasks[1]))
	w.tick(second)
	if len(w.emitted) != 1 || w.emitted[0].RolloutIndex != 0 || w.emitted[0].Attempt != 1 {
		t.Errorf("asked for %+v", w.emitted)
	}
}

// TestResumeAnywhere plays evals in which rollouts fail, vanish, come twice and come late, and which are left again and
// again: no attempt is asked for twice, nothing is asked for that has a trace without error, and in the end the result is
// that of an eval without trouble.
func TestResumeAnywhere(t *testing.T) {
	short := func(p *Plan) {
		p.Config.Timeout, p.Config.GroupTimeout = pipeline.Duration(second), pipeline.Duration(5*second)
	}
	whole := byHand(t, short)
	whole.next(-1, scripted)
	want := whole.result()
	type attempt struct {
		group         int64
		index, number int
	}
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := byHand(t, short)
		asked, good := map[attempt]bool{}, map[attempt]bool{}
		seen, trouble := 0, 0
		for rounds := 0; len(w.results) == 0 || w.result().Errored > 0; rounds++ {
			if rounds > 2000 {
				t.Fatalf("seed %d: no end", seed)
			}
			w.tick(time.Duration(rng.IntN(3)) * second)
			for ; seen < len(w.held.tasks); seen++ {
				task := w.held.tasks[seen]
				a := attempt{task.GroupID, task.RolloutIndex, task.Attempt}
				if asked[a] || good[attempt{a.group, a.index, 0}] {
					t.Fatalf("seed %d: asked for %+v", seed, a)
				}
				asked[a] = true
			}
			switch n := rng.IntN(12); {
			case n == 0 || w.h.eval.run == nil: // left, or at its end with rollouts that failed
				w.resume()
			case len(w.waiting) == 0:
			case n == 1:
				w.waiting = w.waiting[1:] // vanishes
				trouble++
			default:
				i := rng.IntN(len(w.waiting))
				task := w.waiting[i]
				if n != 2 { // else it comes again
					w.waiting = slices.Delete(w.waiting, i, i+1)
				}
				trace := scripted(task)
				if n == 3 {
					trace = failed(task, task.RolloutIndex, "model")
					trace.Attempt = task.Attempt
					trouble++
				} else {
					good[attempt{task.GroupID, task.RolloutIndex, 0}] = true
				}
				w.feed(trace)
			}
		}
		if got := w.result(); !reflect.DeepEqual(got, want) || len(w.held.decided) != 6 {
			t.Fatalf("seed %d: result %+v after %d failures, want %+v", seed, got, trouble, want)
		}
	}
}

// TestResumeNeedsItsTraces: nobody would play a group again that has its outcome.
func TestResumeNeedsItsTraces(t *testing.T) {
	w := byHand(t, nil)
	w.next(-1, scripted)
	w.held.traces = w.held.traces[1:]
	run, _, envs, _ := sections()
	if _, err := newHand(run, envs, w.plan, w.held); err == nil || !strings.Contains(err.Error(), "are gone, by a clean-up") {
		t.Errorf("error %v", err)
	}
}

// TestStragglerByHand is an eval of which one rollout never comes: it ends at the deadline, and a resume asks for it anew.
// That the straggler's server gives up later changes nothing.
func TestStragglerByHand(t *testing.T) {
	w := byHand(t, func(p *Plan) {
		p.Config.Timeout, p.Config.GroupTimeout = pipeline.Duration(second), pipeline.Duration(40*second)
	})
	w.tick(second)
	straggler := w.waiting[0]
	w.waiting = w.waiting[1:]
	w.next(-1, scripted)
	if len(w.results) != 0 {
		t.Fatal("a result without the straggler")
	}
	for range 42 {
		w.tick(second)
	}
	if r := w.result(); r.Errored != 1 || r.Episodes != 11 || w.held.decided[0] {
		t.Fatalf("result %+v, outcomes %v", r, w.held.decided)
	}
	w.resume()
	w.tick(second)
	if len(w.emitted) != 1 || w.emitted[0].Attempt != 1 || w.emitted[0].Seed != straggler.Seed {
		t.Fatalf("asked again for %+v", w.emitted)
	}
	w.feed(failed(straggler, straggler.RolloutIndex, "model"))
	if len(w.results) != 1 {
		t.Fatal("a failure of the earlier attempt ended it")
	}
	w.next(-1, scripted)
	if r := w.result(); len(w.results) != 2 || r.Errored != 0 || !w.held.decided[0] {
		t.Errorf("%d results, %+v, outcomes %v", len(w.results), r, w.held.decided)
	}
}

// TestResumeOfAGroup asks for a whole group anew where the environment plays it as one.
func TestResumeOfAGroup(t *testing.T) {
	w := byHand(t, func(p *Plan) { p.Config.Examples = 2 })
	w.announce(true)
	w.tick(second)
	run := func(name string, task *schemas.Task, fail bool) {
		for i := range 2 {
			trace := play(task, i, 1)
			if fail && i == 1 {
				trace = failed(task, i, "model")
			}
			trace.GroupRun, trace.Attempt = name, task.Attempt
			w.feed(trace)
		}
	}
	if len(w.waiting) != 2 || w.waiting[0].RolloutIndex != -1 {
		t.Fatalf("tasks %+v", w.waiting)
	}
	run("a", w.waiting[0], true)
	run("b", w.waiting[1], false)
	if r := w.result(); r.Errored != 1 {
		t.Fatalf("result %+v", r)
	}
	w.resume()
	w.announce(true)
	w.tick(second)
	if len(w.emitted) != 1 || w.emitted[0].RolloutIndex != -1 || w.emitted[0].Attempt != 1 || w.emitted[0].GroupID != 0 {
		t.Fatalf("asked again for %+v", w.emitted)
	}
	run("c", w.emitted[0], false)
	if r := w.result(); r.Errored != 0 || r.AvgAtK != 1 {
		t.Errorf("result %+v", r)
	}
}

// TestResumeRefusesOtherSettings names what differs.
func TestResumeRefusesOtherSettings(t *testing.T) {
	w := byHand(t, nil)
	w.tick(second)
	run, _, envs, _ := sections()
	for want, change := range map[string]func(*Plan){
		"":                                       func(*Plan) {},
		"begun with k 2, not 3":                  func(p *Plan) { p.Config.K = 3 },
		"begun with temperature 0, not 0.5":      func(p *Plan) { p.Config.Temperature = 0.5 },
		"begun with policy version 2, not 4":     func(p *Plan) { p.Version = 4 },
		`begun with frozen policy , not teacher`: func(p *Plan) { p.Policy = "teacher" },
		"games of another suite than words":      func(p *Plan) { p.Suite = "words" },
		"begun with max_tokens 64, not 32":       func(p *Plan) { p.Config.MaxTokens = 32 },
		"with max_rollout_tokens 64, not 48":     func(p *Plan) { p.Config.MaxRolloutTokens = 48 },
		"begun with timeout 5m0s, not 1s":        func(p *Plan) { p.Config.Timeout = pipeline.Duration(second) },
		"begun with more than 1 examples":        func(p *Plan) { p.Config.Examples = 1 },
	} {
		plan := w.plan
		change(&plan)
		_, err := newHand(run, envs, plan, w.held)
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// TestResumeRefusesOtherGames: which held-out tasks are played is known once the environment has said how many it has, and
// what a clean-up has left of an eval may be its traces only.
func TestResumeRefusesOtherGames(t *testing.T) {
	w := byHand(t, nil)
	w.next(1, scripted)
	other := w.plan
	other.Config.First = 1
	run, _, envs, _ := sections()
	for what, before := range map[string]past{
		"tasks": {tasks: w.held.tasks}, "traces": {traces: w.held.traces, decided: map[int64]bool{}},
	} {
		for want, plan := range map[string]Plan{"": w.plan, "was begun with example 0 as {eval 0": other} {
			h, err := newHand(run, envs, plan, before)
			if err != nil {
				t.Fatal(err)
			}
			var out pipeline.Out
			if err := h.tick(w.now, &out); err != nil || len(out.Emitted) > 0 {
				t.Fatalf("%s: error %v and %d records before the environment is known", what, err, len(out.Emitted))
			}
			if err := h.core.Table(pipeline.Record{Value: &schemas.EnvInfo{Env: "catch", EvalTasks: 4}}); err != nil {
				t.Fatal(err)
			}
			err = h.tick(w.now, &out)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("%s: error %v, want %q", what, err, want)
			}
		}
	}
}

// TestNobodyAnnounces ends an eval, begun or gone on with, whose environment nobody serves.
func TestNobodyAnnounces(t *testing.T) {
	w := byHand(t, nil)
	w.next(3, scripted)
	run, _, envs, _ := sections()
	for _, before := range []past{{}, w.held} {
		h, err := newHand(run, envs, w.plan, before)
		if err != nil {
			t.Fatal(err)
		}
		limit, waited := w.plan.Config.GroupTimeout, time.Duration(0)
		for now := w.now; err == nil && waited < 2*time.Duration(limit); now = now.Add(second) {
			var out pipeline.Out
			err = h.tick(now, &out)
			waited += second
		}
		if !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "start prl-stage --stage envserver --env catch") || waited < time.Duration(limit) {
			t.Errorf("error %v after %v", err, waited)
		}
	}
}

// TestLateRolloutsTakeNoPermits: an example that is decided before it was asked for again was never in flight.
func TestLateRolloutsTakeNoPermits(t *testing.T) {
	w := byHand(t, func(p *Plan) { p.Config.Permits = p.Config.K })
	w.next(-1, func(task *schemas.Task) *schemas.Trace { return failed(task, task.RolloutIndex, "model") })
	late := w.held.tasks[:2]
	w.resume()
	for _, task := range late {
		w.feed(scripted(task))
	}
	if p := w.h.progress(); p.Done != 1 || p.InFlight != 0 {
		t.Errorf("progress %+v before anything was asked for", p)
	}
	for range 3 {
		w.tick(second)
	}
	if p := w.h.progress(); p.InFlight != 1 || len(w.emitted) != 2 {
		t.Errorf("%d tasks, progress %+v, with permits for one example", len(w.emitted), p)
	}
	w.next(-1, scripted)
	if p := w.h.progress(); p.Done != p.Examples || p.InFlight != 0 || w.result().Errored != 0 {
		t.Errorf("progress %+v, result %+v", p, w.result())
	}
}

// TestFrozenPolicyByHand pins nothing, and counts what that policy played only.
func TestFrozenPolicyByHand(t *testing.T) {
	w := byHand(t, func(p *Plan) { p.Version, p.Policy = 0, "teacher" })
	w.tick(second)
	if task := w.waiting[0]; task.Policy != "teacher" || task.PinVersion != nil {
		t.Fatalf("task %+v", task)
	}
	var out pipeline.Out
	if err := w.h.process(pipeline.Record{Value: play(w.waiting[0], 0, 1)}, &out); err == nil {
		t.Error("a rollout of the policy that is trained counts")
	}
	w.next(-1, func(task *schemas.Task) *schemas.Trace {
		trace := scripted(task)
		trace.PolicyStart, trace.PolicyEnd = nil, nil
		trace.Policy += "@0123abcd" // its weights
		return trace
	})
	if r := w.result(); r.Policy != "teacher" || r.Episodes != 12 {
		t.Errorf("result %+v", r)
	}
}

// TestTheStagePassesOverEvalsByHand finishes their traces at once and decides nothing.
func TestTheStagePassesOverEvalsByHand(t *testing.T) {
	w := ready(t, nil)
	w.policy(0, false)
	w.tick(second)
	trace := play(w.waiting[0], 0, 1)
	trace.Eval = pipeline.ByHandPrefix + "x"
	w.feed(trace)
	if len(w.r.Poison) != 0 || len(w.r.Unfinished()) != 0 || len(w.fates) != 0 {
		t.Errorf("poison %v, unfinished %v, %d outcomes", w.r.Poison, w.r.Unfinished(), len(w.fates))
	}
}

func TestProgress(t *testing.T) {
	w := byHand(t, nil)
	w.next(3, scripted)
	p := w.h.progress()
	if p.Done != 1 || p.Examples != 6 || p.InFlight != 2 || p.Failed != 0 || p.Result.Episodes != 2 || p.Waiting != "" {
		t.Errorf("progress %+v %+v", p, p.Result)
	}
	w.h.eval.env.Heard = false
	if got := fmt.Sprint(w.h.progress().Waiting); !strings.Contains(got, "catch") {
		t.Errorf("waits for %q", got)
	}
}
