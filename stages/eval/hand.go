package eval

import (
	"math"
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
	was  map[int64]Game          // what was played before, by group; nil once it was seen to be what is played now
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

// process takes a trace; one of another eval does nothing.
func (h *hand) process(r pipeline.Record, out *pipeline.Out) error {
	if t, ok := r.Value.(*schemas.Trace); !ok || t.Eval != h.eval.name {
		return nil
	}
	return h.core.Process(r, out)
}

// tick emits what there is room for and ends what has been open too long. What was owed comes first, and the result at
// once where nothing is left to play. Until the environment is announced, group_timeout at most, it only waits.
func (h *hand) tick(now time.Time, out *pipeline.Out) error {
	info, cfg := h.eval.env.Info, h.eval.cfg
	if info == nil {
		if h.core.clock.Advance(now); h.core.clock.Ran > cfg.GroupTimeout.Milliseconds() {
			return pipeline.Fatal("no server of environment %s has announced it within group_timeout = %v: start prl-stage --stage envserver --env %s", cfg.Env, cfg.GroupTimeout, cfg.Env)
		}
		return nil
	}
	if info.EvalTasks == 0 && h.eval.games == nil {
		return pipeline.Fatal("environment %s has no held-out tasks", info.Env)
	}
	if err := h.sameGames(); err != nil {
		return err
	}
	for _, o := range h.owed {
		out.Emit(pipeline.TopicOutcomes, o)
	}
	h.owed = nil
	if h.eval.run != nil && h.run.plays() == 0 {
		out.Emit(pipeline.TopicEvals, h.eval.result(h.run))
		h.eval.run = nil
		return nil
	}
	return h.core.Tick(now, out)
}

// A Progress says how far an eval by hand is.
type Progress struct {
	// Examples are to be played; Done of them were, and InFlight are in the hands of servers.
	Examples, Done, InFlight int
	// Failed counts the rollouts that ended with an error.
	Failed int
	// Result is what the examples that are done say so far.
	Result *schemas.EvalResult
	// Waiting is as ByHand.Waiting says.
	Waiting string
}

func (h *hand) progress() Progress {
	p := Progress{Examples: h.run.Examples, InFlight: h.run.open, Result: h.eval.result(h.run), Waiting: h.waiting()}
	p.Done = p.Examples - h.run.plays() + h.run.decided
	p.Failed = int(p.Result.Errored)
	return p
}

func (h *hand) waiting() string {
	switch env := h.eval.env; {
	case env.Info == nil:
		return "no server of environment " + env.Name + " has announced it"
	case !env.Heard:
		return "no server of environment " + env.Name + " has spoken for a minute"
	}
	return ""
}
