// Package scorer writes exactly one SampleGroup for every training group that has a final result of each rollout,
// whatever arrives twice, late or broken, and never two.
//
// A group is complete when every rollout has a trace without error, of which the first counts, or only traces with one.
// Complete groups are scored: advantages (stages/scorer/advantage), one sample per branch, filters
// (stages/scorer/filter). A group with a failed rollout ends without samples and with the reason.
//
//	Reads   traces: one core per partition p of n, which holds the groups with id mod n = p
//	Writes  samples: one SampleGroup per group
//	Key     the group's id
//	State   the ids of the groups decided (stages/internal/idset)
//	On replay  the traces of open groups come again, and nothing else; a trace of a decided group is dropped
//
// Hard guarantees, each with a test of its name: OneSampleGroup (a group is decided once), FirstGoodTrace (the first
// trace without error of each rollout counts, and an error gives way to it), Determinism (the order of the traces of
// different rollouts changes nothing), TokenExactness (samples hold the very tokens, masks and log-probabilities of the
// traces; I7). There is no clock here: what never comes is settled by traces that the emitter writes at the group's
// deadline, so a trace that is refused or cannot be decoded needs no answer.
package scorer

import (
	"errors"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/idset"
)

// Core scores the groups of one partition of traces.
type Core struct {
	partition, partitions int64
	cfg                   Config
	rules                 map[string]rules // by environment, made when its first group is complete
	decided               idset.Set        // of group id div partitions
	groups                map[int64]*group
	stats                 Stats
}

// Stats counts what leaves no record; it starts at zero with every core.
type Stats struct {
	// Late traces were dropped, as their group was decided.
	Late int64
	// Second traces are of a rollout and attempt that had one already: it was run twice, or ended by a deadline as well.
	Second int64
	// Monitored samples would have been dropped by a filter that only monitors.
	Monitored int64
}

// New gives the maker of cores for the partitions of traces.
func New(run pipeline.RunConfig, cfg Config) func(partition int32, state []byte) (pipeline.Core, error) {
	return func(partition int32, state []byte) (pipeline.Core, error) {
		if err := errors.Join(run.Validate(), cfg.Validate()); err != nil {
			return nil, err
		}
		decided, err := idset.FromBytes(state)
		if err != nil {
			return nil, fmt.Errorf("read the decided groups of traces/%d: %w", partition, err)
		}
		return &Core{
			partition: int64(partition), partitions: int64(run.TracePartitions), cfg: cfg,
			rules: map[string]rules{}, decided: decided, groups: map[int64]*group{},
		}, nil
	}
}

// Process takes the next trace. It refuses, as poison, one that belongs to an eval or to another partition, and one
// that cannot be trained on (check).
func (c *Core) Process(r pipeline.Record, out *pipeline.Out) error {
	t, ok := r.Value.(*schemas.Trace)
	if !ok {
		return fmt.Errorf("score %v: a %s, not a Trace", r.Ref, r.Value.SchemaName())
	}
	switch {
	case t.Eval != "":
		return fmt.Errorf("score %v: group %d belongs to the eval %q", r.Ref, t.GroupID, t.Eval)
	case t.GroupID%c.partitions != c.partition:
		return fmt.Errorf("score %v: group %d does not belong to partition %d of %d", r.Ref, t.GroupID, c.partition, c.partitions)
	case c.decided.Has(t.GroupID / c.partitions):
		c.stats.Late++
		out.Finish(r.Ref)
		return nil
	}
	if err := check(t); err != nil {
		return fmt.Errorf("score %v: group %d, rollout %d: %w", r.Ref, t.GroupID, t.RolloutIndex, err)
	}
	g := c.groups[t.GroupID]
	if g == nil {
		g = newGroup(t)
		c.groups[t.GroupID] = g
	}
	g.refs = append(g.refs, r.Ref)
	if g.add(t) {
		c.stats.Second++
	}
	if traces := g.complete(); traces != nil {
		c.decide(g, traces, out)
	}
	return nil
}

// decide ends a group.
func (c *Core) decide(g *group, traces []*schemas.Trace, out *pipeline.Out) {
	first := g.first
	sg := &schemas.SampleGroup{
		Env: first.Env, GroupID: first.GroupID, TaskIndex: first.TaskIndex, Emitted: first.GroupSize,
		Step: first.Step, Wave: first.Wave, WaveFirst: first.WaveFirst, WaveLast: first.WaveLast,
		Reason: reason(traces), Rollouts: make([]schemas.RolloutFate, len(traces)),
	}
	for i, t := range traces {
		sg.Rollouts[i] = describe(t)
		if sg.Rollouts[i].Fate == "" {
			sg.Rollouts[i].Fate = sg.Reason
		}
	}
	if sg.Reason == "" {
		c.rulesOf(first.Env).score(traces, sg, &c.stats)
	}
	out.Emit(pipeline.TopicSamples, sg)
	for _, ref := range g.refs {
		out.Finish(ref)
	}
	c.decided.Add(first.GroupID / c.partitions)
	delete(c.groups, first.GroupID)
}

func (c *Core) rulesOf(env string) rules {
	r, ok := c.rules[env]
	if !ok {
		var err error
		if r, err = newRules(c.cfg.of(env)); err != nil {
			panic(fmt.Sprintf("rules of %s after validation: %v", env, err))
		}
		c.rules[env] = r
	}
	return r
}

// State is the ids of the decided groups.
func (c *Core) State() ([]byte, error) { return c.decided.Bytes(), nil }

// Counts implements pipeline.Counter.
func (c *Core) Counts() map[string]int64 {
	return map[string]int64{"late": c.stats.Late, "second": c.stats.Second}
}

// Stats is what the core has counted since it was made.
func (c *Core) Stats() Stats { return c.stats }
