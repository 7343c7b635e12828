// Package packer decides every training group, once, and packs those worth training on into the batches of one step
// after the other; its only input is samples, so that the order of that log alone decides what a step holds.
//
// A step is cut when the rollouts emitted for the groups held reach run.batch_size, or their tokens run.batch_tokens.
// Groups without samples, too stale or too long get their outcome at once. In ordered mode a step is decided as a whole:
// when every group of its waves has come, in the order of their ids (ordered.go). A token counts for each loss component
// that its sample gives it to: rl, ce and ref_kl (loss.go).
//
//	Reads   samples: one partition
//	Writes  batches: all micro-batches of a step, as many for every rank; outcomes: one for each training group;
//	        requests: the next wave of a step in ordered mode; metrics: the figures of each step, with time 0 (a core has
//	        no clock)
//	Key     batches by rank, outcomes by group, requests by step and wave, metrics by name
//	State   the last step, the groups decided, what the next step's metrics count (state.go)
//	On replay  the groups held come again; a group that is held or decided already is dropped
//
// Hard guarantees, each with a test of its name: OneOutcome (I1: every group ends once), TrainedOnce (I2: every sample of
// a packed group is in exactly one micro-batch), EveryToken (with all that its loss components say of its tokens),
// Staleness (I3: 0 ≤ (s-1) - policy_start ≤ max_off_policy_steps for every sample of step s, or its whole group is stale),
// Determinism (I6: in ordered mode the same groups give the same bytes, in whatever order they come), LossTokens (every
// micro-batch carries the step's number of tokens of each loss component), WholeSteps (every rank gets equally many
// micro-batches, none longer than seq_len, and no step comes after run.max_steps). The balance of the ranks (balance.go)
// is an optimisation.
package packer

import (
	"errors"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Core packs the groups of a run.
type Core struct {
	run   pipeline.RunConfig
	cfg   Config
	state state
	held  map[int64]*held
	// rollouts emitted for the groups held that can be packed, and tokens of their samples.
	rollouts, tokens int
	wave             wave // ordered mode only
	guard            guard
	barren           barren
	stats            Stats
}

// held is a group that waits for the cut. In ordered mode all groups of a step do, those without samples too.
type held struct {
	ref   pipeline.Ref
	group *schemas.SampleGroup
	verdict
}

// Stats counts what leaves no record; it starts at zero with every core.
type Stats struct {
	// Late groups were dropped, as they were held or decided already.
	Late int64
}

// New gives the maker of the packer's core.
func New(run pipeline.RunConfig, cfg Config) func(partition int32, state []byte) (pipeline.Core, error) {
	return func(partition int32, b []byte) (pipeline.Core, error) {
		if err := errors.Join(run.Validate(), cfg.Validate()); err != nil {
			return nil, err
		}
		if partition != 0 {
			return nil, fmt.Errorf("samples/%d: the packer reads one partition", partition)
		}
		s, err := readState(b)
		if err != nil {
			return nil, fmt.Errorf("read the packer's state: %w", err)
		}
		c := &Core{run: run, cfg: cfg, state: s, held: map[int64]*held{}}
		c.wave = c.firstWave()
		return c, nil
	}
}

// Process takes the next group. The error is fatal where nothing can come of going on: packer.overlong = error, or the
// zero-output guard. No group is refused as poison, since each needs an outcome.
func (c *Core) Process(r pipeline.Record, out *pipeline.Out) error {
	g, ok := r.Value.(*schemas.SampleGroup)
	if !ok {
		return fmt.Errorf("pack %v: a %s, not a SampleGroup", r.Ref, r.Value.SchemaName())
	}
	switch {
	case c.held[g.GroupID] != nil || c.state.decided.Has(g.GroupID):
		c.stats.Late++
		out.Finish(r.Ref)
		return nil
	case c.state.Step >= c.run.MaxSteps:
		c.end(g, verdict{fate: schemas.FateCancelled}, nil, out)
		out.Finish(r.Ref)
		return nil
	}
	v, err := c.judge(g, c.state.Step+1)
	if err != nil {
		return err
	}
	if c.run.Ordered() {
		return c.processOrdered(&held{r.Ref, g, v}, out)
	}
	if v.fate != "" {
		if err := c.withoutSamples(g, v); err != nil {
			return err
		}
		c.end(g, v, nil, out)
		out.Finish(r.Ref)
		return nil
	}
	c.guard = guard{}
	c.hold(&held{r.Ref, g, v})
	if c.full() {
		c.cut(out)
	}
	return nil
}

// Undecodable ends the group that the key names as errored.
func (c *Core) Undecodable(r pipeline.Record, reason error, out *pipeline.Out) error {
	eval, id, ok := pipeline.GroupOfKey(r.Key)
	if !ok || eval != "" || c.held[id] != nil || c.state.decided.Has(id) {
		return nil
	}
	return c.lost(&schemas.SampleGroup{Env: unknownEnv, GroupID: id}, reason, out)
}

// unknownEnv stands for the environment of a group whose record cannot be read.
const unknownEnv = "unknown"

// lost ends a group as errored of which the record is unusable.
func (c *Core) lost(g *schemas.SampleGroup, reason error, out *pipeline.Out) error {
	v := verdict{fate: schemas.FateErrored}
	switch {
	case c.state.Step >= c.run.MaxSteps:
		v.fate = schemas.FateCancelled
	case !c.run.Ordered():
		if err := c.withoutSamples(g, v); err != nil {
			return fmt.Errorf("%w (the last one: %w)", err, reason)
		}
	}
	c.end(g, v, nil, out)
	if c.run.Ordered() && c.state.Step < c.run.MaxSteps {
		return c.advance(out)
	}
	return nil
}

// end writes the outcome of a group and remembers it; step is set where it was packed.
func (c *Core) end(g *schemas.SampleGroup, v verdict, step *int64, out *pipeline.Out) {
	outcome := &schemas.GroupOutcome{
		Env: g.Env, GroupID: g.GroupID, TaskIndex: g.TaskIndex, Fate: v.fate, Step: step, Filter: v.filter,
		Rollouts: make([]schemas.RolloutFate, len(g.Rollouts)),
	}
	for i, r := range g.Rollouts {
		switch {
		case v.fate != schemas.FatePacked:
			if r.Fate == "" {
				r.Fate = v.fate
			}
		case v.packs(r.RolloutIndex):
			r.Fate = schemas.FatePacked
		case r.Fate == "":
			r.Fate = schemas.FateOverlong // only a cut at seq_len takes a rollout out of a group
		}
		outcome.Rollouts[i] = r
	}
	out.Emit(pipeline.TopicOutcomes, outcome)
	c.state.decided.Add(g.GroupID)
	c.barren.ended(g, v)
	c.state.Since.count(g, v.fate, outcome.Rollouts)
}

func (c *Core) hold(h *held) {
	c.held[h.group.GroupID] = h
	if h.fate != "" {
		return
	}
	c.barren = barren{}
	c.rollouts += h.group.Emitted
	for _, s := range h.samples {
		c.tokens += s.TokenIDs.Len()
	}
}

// full reports whether the groups held are a step.
func (c *Core) full() bool {
	return c.rollouts >= c.run.BatchSize || c.run.BatchTokens > 0 && c.tokens >= c.run.BatchTokens
}

// State is the packer's own state.
func (c *Core) State() ([]byte, error) { return c.state.bytes() }

// Stats is what the core has counted since it was made.
func (c *Core) Stats() Stats { return c.stats }
