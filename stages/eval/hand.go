package eval

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/internal/schedule"
)

// A Plan says what an eval by hand measures. Its seeds are those of a suite of the run, so that it plays the same games:
// of the same version and settings it gives the same figures.
type Plan struct {
	// Name of the eval: pipeline.ByHandPrefix and an id of its own.
	Name string
	// Suite is the section [evals.<name>] whose games are played; the environment's name where there is none.
	Suite string
	// Config says what is played and how; its Interval has no meaning here.
	Config Config
	// Version is the policy version that is measured.
	Version int64
	// Policy is the frozen policy that is measured instead; empty for none.
	Policy string
	// Games are the recorded games that are played, one an example; nil for held-out tasks.
	Games []Game
}

// A hand is the core of an eval by hand: the stage's, with one eval of one version and what was played of it before.
type hand struct {
	core *Core
	eval *eval
	run  *round                  // stays when the core has let go of it
	owed []*schemas.GroupOutcome // of examples that were played to their end before, and not decided
}

// past is what the topics hold of an eval by hand.
type past struct {
	tasks   []*schemas.Task
	traces  []*schemas.Trace
	decided map[int64]bool // groups that have an outcome
}

// newHand makes the core of p, which goes on where before ended: what has a trace without error is not played again, what
// failed is asked for anew, and what was asked for and has no trace is waited for: a server has it, or gets it at its
// start.
func newHand(run pipeline.RunConfig, envs map[string]emitter.EnvConfig, p Plan, before past) (*hand, error) {
	c := &Core{run: run, envs: envs, tables: schedule.NewEnvs([]string{p.Config.Env}, run.TaskPartitions)}
	c.next = math.MaxInt64 // no version begins an eval
	e := &eval{name: p.Name, seeds: p.Suite, cfg: p.Config, env: c.tables[0], policy: p.Policy, byHand: true, games: p.Games}
	c.evals = []*eval{e}
	e.start(p.Version)
	h := &hand{core: c, eval: e, run: e.run}
	if len(before.tasks) > 0 || len(before.traces) > 0 {
		return h, h.goOn(before)
	}
	return h, nil
}

// goOn takes up what was played before.
func (h *hand) goOn(before past) error {
	r := h.run
	whole := make([]bool, r.Examples)
	for _, t := range before.tasks {
		if err := h.holds(t); err != nil {
			return err
		}
		x := &r.examples[t.GroupID]
		if x.asked == nil {
			x.asked = slices.Repeat([]int{0}, r.K)
		}
		if t.RolloutIndex < 0 {
			whole[t.GroupID] = true
			for i := range x.asked {
				x.asked[i] = max(x.asked[i], t.Attempt)
			}
		} else {
			x.asked[t.RolloutIndex] = max(x.asked[t.RolloutIndex], t.Attempt)
		}
		h.eval.ids = max(h.eval.ids, t.GroupID+1)
	}
	traces := map[int64]*schemas.Trace{} // one of each group
	for _, t := range before.traces {
		if t.GroupID >= int64(r.Examples) || r.accepts(t) != nil {
			continue
		}
		x := &r.examples[t.GroupID]
		if x.asked == nil { // its task was deleted by a clean-up
			x.asked = slices.Repeat([]int{0}, r.K)
			whole[t.GroupID] = t.GroupRun != ""
		}
		x.add(t, r.K)
		traces[t.GroupID] = t
		h.eval.ids = max(h.eval.ids, t.GroupID+1)
	}
	waiting, due := []int{}, []int{}
	for i := range r.examples {
		x, decided := &r.examples[i], before.decided[int64(i)]
		switch {
		case x.clean() != nil:
			x.decide(x.clean())
			if !decided {
				h.owed = append(h.owed, outcome(traces[int64(i)], x.rollouts))
			}
		case decided:
			return fmt.Errorf("rollouts of %s are gone, by a clean-up: begin another without --resume", h.eval.name)
		case x.asked == nil:
			due = append(due, i)
		case x.renew(whole[i]):
			due = append(due, i)
		default:
			waiting = append(waiting, i)
		}
	}
	r.order = append(waiting, due...)
	if r.emitted = len(waiting); r.emitted > 0 {
		r.Emitted = []batch{{Count: r.emitted}}
	}
	return nil
}

// holds checks that a task that was emitted before is one of the plan's.
func (h *hand) holds(t *schemas.Task) error {
	r, cfg := h.run, h.eval.cfg
	pin := int64(-1)
	if t.PinVersion != nil {
		pin = *t.PinVersion
	}
	want := func(what string, was, is any) error {
		return fmt.Errorf("%s was begun with %s %v, not %v: give it the same settings, or begin another without --resume", h.eval.name, what, was, is)
	}
	switch {
	case t.Env != r.Env:
		return want("environment", t.Env, r.Env)
	case t.Policy != r.policy:
		return want("frozen policy", t.Policy, r.policy)
	case t.Policy == "" && pin != r.Version:
		return want("policy version", pin, r.Version)
	case t.GroupSize != r.K:
		return want("k", t.GroupSize, r.K)
	case t.Temperature != cfg.Temperature:
		return want("temperature", t.Temperature, cfg.Temperature)
	case t.GroupID >= int64(r.Examples):
		return fmt.Errorf("%s was begun with more than %d examples: give it as many", h.eval.name, r.Examples)
	case t.GroupSeed != h.core.groupSeed(h.eval, int(t.GroupID)):
		return fmt.Errorf("%s was begun with the games of another suite than %s: name that one with --suite", h.eval.name, h.eval.seeds)
	}
	return nil
}

// clean is the rollouts of an attempt that has all of them, none failed; nil where there is none.
func (x *example) clean() []*rollout {
	for _, a := range x.attempts {
		if !slices.Contains(a.rollouts, nil) && !failedSome(a.rollouts) {
			return a.rollouts
		}
	}
	return nil
}

// renew lets go of the rollouts that failed and says whether there were any: they are due once more. Where the
// environment plays the group as one task that is all of it.
func (x *example) renew(whole bool) bool {
	if whole {
		if x.complete() == nil {
			return false
		}
		x.attempts = nil
		for i := range x.asked {
			x.asked[i]++
		}
		x.due = []ask{{-1, x.asked[0]}}
		return true
	}
	for _, a := range x.attempts {
		for i, r := range a.rollouts {
			if r != nil && !r.ok() {
				a.rollouts[i] = nil
				x.asked[i]++
				x.due = append(x.due, ask{i, x.asked[i]})
			}
		}
	}
	return len(x.due) > 0
}

// process takes a trace; one of another eval does nothing.
func (h *hand) process(r pipeline.Record, out *pipeline.Out) error {
	if t, ok := r.Value.(*schemas.Trace); !ok || t.Eval != h.eval.name {
		return nil
	}
	return h.core.Process(r, out)
}

// tick emits what there is room for and ends what has been open too long. What was owed comes first, and the result at
// once where nothing is left to play.
func (h *hand) tick(now time.Time, out *pipeline.Out) error {
	if info := h.eval.env.Info; info != nil && info.EvalTasks == 0 && h.eval.games == nil {
		return pipeline.Fatal("environment %s has no held-out tasks", info.Env)
	}
	for _, o := range h.owed {
		out.Emit(pipeline.TopicOutcomes, o)
	}
	h.owed = nil
	if h.eval.run != nil && h.run.plays() == 0 && h.eval.env.Info != nil {
		out.Emit(pipeline.TopicEvals, h.eval.result(h.run))
		h.eval.run = nil
		return nil
	}
	return h.core.Tick(now, out)
}

// A Progress says how far an eval by hand is.
type Progress struct {
	// Examples are to be played; Done of them were, and InFlight are.
	Examples, Done, InFlight int
	// Failed counts the rollouts that ended with an error.
	Failed int
	// Result is what the examples that are done say so far.
	Result *schemas.EvalResult
	// Waiting says what it waits for before anything is played; empty once something is.
	Waiting string
}

func (h *hand) progress() Progress {
	p := Progress{Examples: h.run.Examples, InFlight: h.run.emitted - h.run.decided, Result: h.eval.result(h.run)}
	p.Done = p.Examples - h.run.plays() + h.run.decided
	p.Failed = int(p.Result.Errored)
	switch env := h.eval.env; {
	case env.Info == nil:
		p.Waiting = "no server of environment " + env.Name + " has announced it"
	case !env.Heard:
		p.Waiting = "no server of environment " + env.Name + " has spoken for a minute"
	}
	return p
}
