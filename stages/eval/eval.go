// Package eval measures policy versions on held-out tasks: every eval that is due for a version gets exactly one
// EvalResult, made of rollouts that this very version played, and training does not notice.
//
// Reads: eval_traces (one partition); the tables policies, envs and, of environment servers, state.
//
// Writes: tasks.<env>, pinned to the version; to eval_traces, an errored Trace (timed_out) for each rollout of an
// example that was open too long, which comes back as input; to outcomes, the fate of every example; to evals, the
// results. The evals of a version run at the same time, versions one after the other; those that come due meanwhile wait.
//
// Key: (eval, n): the groups of each eval are numbered from 0 over all its versions, one group an example. Seeds derive
// from (run seed, eval, example), the same for every version, so that versions are compared on the same games.
//
// State: the next version to look at, and of each eval that runs: its version, its first group, how many of its groups
// were emitted when, and up to which one deadlines have been dealt with.
//
// On replay: the traces of an eval stay unfinished until its result is written, so its figures are made again from
// them; a trace that changes nothing is finished as it comes.
//
// Invariants, each with a test of its name: OneResult (per eval and due version), OneOutcome (per example), Pinned (no
// other version's rollouts count).
//
// An eval by hand (ByHand) measures one version now, of a run that goes on or has ended, with the same bookkeeping and a
// process of its own. Its name begins with pipeline.ByHandPrefix, so its groups, permits and results are apart from those
// of the run, whose stages pass over them. It keeps no state: left in the middle it goes on from what the topics hold. Beside
// a run that stands still its process serves the environment for itself alone: it plays no other tasks (Plays), and what
// the environment is goes to the eval and not to the run (Announce).
package eval

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/internal/schedule"
)

const (
	stage = "eval"
	// touchEvery is how often, in milliseconds, the ages of open examples are made durable where nothing else is.
	touchEvery = 1000
)

// Core is the eval stage of a run. Its methods are for one goroutine.
type Core struct {
	run   pipeline.RunConfig
	envs  map[string]emitter.EnvConfig
	evals []*eval // by name

	tables   schedule.Envs
	versions []version // as read, ascending
	touched  int64     // clock.Ran when State was last said to have changed

	clock schedule.Clock // part of State
	next  int64          // lowest version that has not been begun; part of State
	gone  []evalState    // evals taken out of the configuration, whose ids are used up; part of State
}

// version is what is needed of a PolicyVersion.
type version struct {
	number int64
	end    bool
}

// eval is a configured eval, or one by hand.
type eval struct {
	name   string
	seeds  string // name that its seeds derive from
	cfg    Config
	env    *schedule.Env
	policy string // frozen policy it measures; empty for versions of the one that is trained
	byHand bool   // what failed stays open, to be played again
	games  []Game // of an eval by hand that plays recorded ones; else nil
	ids    int64  // groups of this eval so far; part of State
	run    *round
}

// New checks the configuration and returns the factory of the one core.
func New(run pipeline.RunConfig, em emitter.Config, envs map[string]emitter.EnvConfig, evals map[string]Config) (func(partition int32, state []byte) (pipeline.Core, error), error) {
	if err := Validate(run, em, envs, evals); err != nil {
		return nil, err
	}
	return func(partition int32, state []byte) (pipeline.Core, error) {
		if partition != 0 {
			return nil, fmt.Errorf("eval of partition %d: its input has one partition", partition)
		}
		return newCore(run, envs, evals, state)
	}, nil
}

func newCore(run pipeline.RunConfig, envs map[string]emitter.EnvConfig, evals map[string]Config, state []byte) (*Core, error) {
	c := &Core{run: run, envs: envs, tables: schedule.NewEnvs(slices.Collect(maps.Keys(envs)), run.TaskPartitions)}
	for _, name := range slices.Sorted(maps.Keys(evals)) {
		cfg := evals[name]
		c.evals = append(c.evals, &eval{name: name, seeds: name, cfg: cfg, env: c.tables[c.tables.Index(cfg.Env)]})
	}
	if state != nil {
		if err := c.restore(state); err != nil {
			return nil, fmt.Errorf("state of the evals: %w", err)
		}
	}
	return c, nil
}

// Pending is the number of results that are due and not written: one per eval and version read so far.
func (c *Core) Pending() int {
	n := 0
	for _, e := range c.evals {
		if e.run != nil {
			n++
		}
		for _, v := range c.versions {
			if v.number >= c.next && e.cfg.Due(v.number, v.end) {
				n++
			}
		}
	}
	return n
}

// Table takes a PolicyVersion, an EnvInfo or a StageState.
func (c *Core) Table(r pipeline.Record) error {
	if v, ok := r.Value.(*schemas.PolicyVersion); ok {
		if n := len(c.versions); n == 0 || v.Version > c.versions[n-1].number {
			c.versions = append(c.versions, version{v.Version, End(v)})
		}
	}
	c.tables.Table(r)
	return nil
}

// Produced hears which offsets the tasks got.
func (c *Core) Produced(refs []pipeline.Ref) { c.tables.Produced(refs) }

// Process takes a Trace of an eval. One of an example that is decided already is dropped, and so are those of evals by hand,
// which other processes run.
func (c *Core) Process(r pipeline.Record, out *pipeline.Out) error {
	t, ok := r.Value.(*schemas.Trace)
	if !ok {
		return fmt.Errorf("%s is no trace", r.Value.SchemaName())
	}
	i := slices.IndexFunc(c.evals, func(e *eval) bool { return e.name == t.Eval })
	if i < 0 && pipeline.EvalByHand(t.Eval) {
		out.Finish(r.Ref)
		return nil
	}
	if i < 0 {
		return fmt.Errorf("eval %q is not configured", t.Eval)
	}
	e := c.evals[i]
	if t.GroupID >= e.ids {
		return fmt.Errorf("group %d of eval %s was not emitted", t.GroupID, e.name)
	}
	if e.run == nil || t.GroupID < e.run.First {
		out.Finish(r.Ref)
		return nil
	}
	return e.take(r.Ref, t, out)
}

// Tick ends what has been open too long, begins the next version when the last is done, and emits what there is room for.
func (c *Core) Tick(now time.Time, out *pipeline.Out) error {
	c.clock.Advance(now)
	if err := c.begin(out); err != nil {
		return err
	}
	waiting := false
	for _, e := range c.evals {
		if e.run == nil {
			continue
		}
		waiting = true
		c.expire(e, out)
		if info := e.env.Info; info != nil && (info.EvalTasks > 0 || e.games != nil) {
			c.emit(e, out)
		}
	}
	if waiting && c.clock.Ran-c.touched >= touchEvery {
		out.Touch()
	}
	if out.Changed() {
		c.touched = c.clock.Ran
	}
	return nil
}

// begin starts the evals of the next version for which some are due, when none runs. It waits for the EnvInfo of their
// environments.
func (c *Core) begin(out *pipeline.Out) error {
	if slices.ContainsFunc(c.evals, func(e *eval) bool { return e.run != nil }) {
		return nil
	}
	for _, v := range c.versions {
		if v.number < c.next {
			continue
		}
		due := false
		for _, e := range c.evals {
			if !e.cfg.Due(v.number, v.end) {
				continue
			}
			due = true
			if e.env.Info == nil {
				return nil
			}
			if e.env.Info.EvalTasks == 0 {
				return pipeline.Fatal("evals.%s.env = %q: the environment has no held-out tasks; take the eval out", e.name, e.cfg.Env)
			}
		}
		if !due {
			continue
		}
		for _, e := range c.evals {
			if e.cfg.Due(v.number, v.end) {
				e.start(v.number)
			}
		}
		c.next = v.number + 1
		out.Touch()
		return nil
	}
	return nil
}
