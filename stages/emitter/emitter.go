// Package emitter asks for all rollouts of training: it writes every group's tasks exactly once, never holds more
// rollouts in flight than it has permits, and ends what has been open too long, so that every group it emitted gets its
// outcome.
//
// Reads: outcomes and requests (one partition each, one core for both); the tables policies, envs and, of environment
// servers, the recent ones of state. Nothing is emitted before a PolicyVersion and the EnvInfo of every configured
// environment.
//
// Writes: tasks.<env>, each to the partition schedule.Queues chooses; to traces, an errored Trace for each rollout of a
// group that is ended here, because of its deadline (timed_out) or because the run has (cancelled).
//
// Key: group id. Ids are dense from 0. Which environment (mix.go) and task (curriculum.go) a group gets depends on the ids
// before it and, where a mix or curriculum learns, on the outcomes before it; in ordered mode on nothing else, otherwise
// also on which environments were alive and below their share.
//
// State: the open groups (id, environment, size, age, task, policy version; at most 24 bytes each without refills), the
// environments' cursors, the generator, the next id, the newest packed step, the waves of the current step, the time the
// core ran; what mix and curricula have learnt: 24 bytes and its name for each environment, and 2 to 4 bytes for each
// task that is remembered, of which there are at most curriculum.remember.
//
// On replay: records are finished as they come, so nothing is fed again; all there is stands in State. Which partition a
// task goes to, and which environments are lost, follow from the tables as they are then: no result depends on it.
//
// Invariants, each with a test of its name: NothingTwice (no group or rollout attempt is emitted twice, none is skipped,
// and of the shuffled curriculum no training task of an epoch, wherever the core is restarted), Permits, OneEnding (a
// group's rollouts are ended here once), EvalsChangeNothing, NothingStale (under StalenessWait nothing is dropped for its
// age, as long as inference servers are at most serving_lag versions behind; pace.go). The guarantees above are hard;
// balance over servers and the bound on an environment's share are optimisations.
package emitter

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/schedule"
)

const (
	stage = "emitter"
	// emitEvery is the least time between two ticks that emit groups.
	emitEvery = 100 * time.Millisecond
	// touchEvery is how often, in milliseconds, the ages of open groups are made durable where nothing else is.
	touchEvery = 1000
)

// Core is the emitter of a run. Its methods are for one goroutine.
type Core struct {
	run     pipeline.RunConfig
	cfg     Config
	mix     EnvMixStrategy // part of State
	permits int

	tables  schedule.Envs
	envs    []*environment // in the order of tables
	version int64          // newest policy version; -1 before the first
	final   bool           // no step follows it
	emitted time.Time      // last tick that emitted groups
	ticked  time.Time      // last tick
	touched int64          // clock.Ran when State was last said to have changed
	pcg     *rand.PCG      // part of State
	clock   schedule.Clock // part of State
	nextID  int64          // part of State
	packed  int64          // newest step with an outcome; part of State
	open    []*group       // by id; part of State
	held    int            // rollouts of open groups
	waves   waves          // ordered mode; part of State
	another bool           // the state is of another run: what is open there is not this one's
}

// environment is a configured environment.
type environment struct {
	*schedule.Env
	cfg        EnvConfig
	cursor     cursor     // part of State
	curriculum curriculum // on the cursor; part of State
	held       int        // rollouts of its open groups
	heard      time.Time  // tick after its servers spoke last
}

// New checks the configuration and returns the factory of the one core.
func New(run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig) (func(partition int32, state []byte) (pipeline.Core, error), error) {
	if err := Validate(run, cfg, envs); err != nil {
		return nil, err
	}
	return func(partition int32, state []byte) (pipeline.Core, error) {
		if partition != 0 {
			return nil, fmt.Errorf("emitter of partition %d: its inputs have one partition", partition)
		}
		return newCore(run, cfg, envs, state)
	}, nil
}

func newCore(run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig, state []byte) (*Core, error) {
	c := &Core{
		run: run, cfg: cfg, mix: mixes[cfg.Mix](cfg), permits: cfg.permits(run, envs), version: -1,
		tables: schedule.NewEnvs(slices.Collect(maps.Keys(envs)), run.TaskPartitions),
		pcg:    rand.NewPCG(schedule.Mix(uint64(run.Seed), schedule.Word("mix")), 0),
	}
	for _, env := range c.tables {
		key := schedule.Mix(uint64(run.Seed), schedule.Word("order"), schedule.Word(env.Name))
		e := &environment{Env: env, cfg: envs[env.Name], cursor: cursor{key: key}}
		e.curriculum = curricula[e.cfg.Curriculum.Kind](e.cfg.Curriculum, &e.cursor)
		c.envs = append(c.envs, e)
	}
	if state != nil {
		if err := c.restore(state); err != nil {
			return nil, fmt.Errorf("state of the emitter: %w", err)
		}
	}
	return c, nil
}

// Open is the number of groups without an outcome.
func (c *Core) Open() int { return len(c.open) }

// Done reports whether the run has ended: the final version is there, and every group has its outcome.
func (c *Core) Done() bool { return c.final && len(c.open) == 0 }

// Waiting says what must come before the first task.
func (c *Core) Waiting() string {
	if c.version < 0 {
		return "policy version 0 (of --stage trainer)"
	}
	if missing := c.tables.Missing(); len(missing) > 0 {
		return fmt.Sprintf("servers of the environments %s (--stage envserver --env NAME)", strings.Join(missing, ", "))
	}
	return ""
}

// Table takes a PolicyVersion, an EnvInfo or a StageState.
func (c *Core) Table(r pipeline.Record) error {
	if v, ok := r.Value.(*schemas.PolicyVersion); ok && v.Version > c.version {
		c.version, c.final = v.Version, v.Final
	}
	c.tables.Table(r)
	return nil
}

// Process takes a GroupOutcome or a Request.
func (c *Core) Process(r pipeline.Record, out *pipeline.Out) error {
	switch v := r.Value.(type) {
	case *schemas.GroupOutcome:
		if v.Eval == "" {
			if v.Step != nil {
				c.packed = max(c.packed, *v.Step)
			}
			c.learn(v)
			c.close(v.GroupID)
		}
	case *schemas.Request:
		if v.Kind == schemas.RequestWave {
			c.waves.request(v.Step, v.Wave, v.Rollouts)
		} else {
			c.refill(v, out)
		}
	default:
		return fmt.Errorf("%s is neither an outcome nor a request", r.Value.SchemaName())
	}
	out.Finish(r.Ref)
	return nil
}

// Undecodable ends the group that an unreadable outcome names, and answers an unreadable request for a wave with a whole
// one. An unreadable refill is settled by the group's deadline.
func (c *Core) Undecodable(r pipeline.Record, _ error, out *pipeline.Out) error {
	if r.Topic == pipeline.TopicOutcomes {
		if eval, id, ok := pipeline.GroupOfKey(r.Key); ok && eval == "" {
			c.close(id)
		}
	}
	var step int64
	var wave int
	if n, _ := fmt.Sscanf(r.Key, "wave/%d/%d", &step, &wave); n == 2 && r.Topic == pipeline.TopicRequests {
		c.waves.request(step, wave, c.run.BatchSize)
	}
	out.Touch()
	return nil
}

// Produced hears which offsets the tasks got.
func (c *Core) Produced(refs []pipeline.Ref) { c.tables.Produced(refs) }

// Tick ends what is over and emits what there is room for.
func (c *Core) Tick(now time.Time, out *pipeline.Out) error {
	c.clock.Advance(now)
	c.ticked = now
	for _, env := range c.envs {
		if env.Heard {
			env.Heard, env.heard = false, now
		}
	}
	c.expire(out)
	switch {
	case c.final:
		c.cancel(out)
	case c.version >= 0 && c.tables.Announced() && now.Sub(c.emitted).Abs() >= emitEvery: // a clock may be set back
		next := c.nextID
		if err := c.emit(now, out); err != nil {
			return pipeline.Fatal("emit tasks: %w", err)
		}
		if c.nextID != next {
			c.emitted = now
		}
	}
	if len(c.open) > 0 && c.clock.Ran-c.touched >= touchEvery {
		out.Touch()
	}
	if out.Changed() {
		c.touched = c.clock.Ran
	}
	return nil
}

func (c *Core) emit(now time.Time, out *pipeline.Out) error {
	if c.run.Ordered() {
		return c.emitWave(out)
	}
	return c.emitFree(now, out)
}
