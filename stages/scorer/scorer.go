// Package scorer writes exactly one SampleGroup for every training group that has a final result of each rollout,
// whatever arrives twice, late or broken, and never two.
//
// A group is complete when every rollout has a trace without error, of which the first counts, or has failed for good:
// failed rollouts are asked for again, left out, or end the group, as its environment's settings say (Partial). Complete
// groups are scored: credits (stages/scorer/advantage), one sample per branch, filters (stages/scorer/filter). A group
// that cannot be scored ends without samples and with the reason. README.md lists the algorithms and the filters.
//
//	Reads   traces: one core per partition p of n, which holds the groups with id mod n = p
//	Writes  samples: one SampleGroup per group; requests: one Request per failed attempt that is tried again
//	Key     the group's id
//	State   the ids of the groups decided (stages/internal/idset), and moving averages of rewards where rae keeps some
//	On replay  the traces of open groups come again, and nothing else; a trace of a decided group is dropped
//
// Hard guarantees, each with a test of its name: OneSampleGroup (a group is decided once), FirstGoodTrace (the first
// trace without error of each rollout counts, and an error gives way to it), Determinism (the order of the traces of
// different rollouts changes nothing), TokenExactness (samples hold the very tokens, masks and log-probabilities of the
// traces; I7), OneRequest (an attempt is asked for once, whatever arrives twice and whenever the core is built again).
// There is no clock here: what never comes is settled by traces that the emitter writes at the group's deadline, so a
// trace that is refused or cannot be decoded, and a request that is lost, need no answer.
//
// Where rae keeps averages, groups matter to those after them, so they have one order (run.trace_partitions = 1): that in
// which they are complete in the log, or in ordered mode, where the log's order is chance, that of their ids.
package scorer

import (
	"errors"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/idset"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// Core scores the groups of one partition of traces.
type Core struct {
	partition, partitions int64
	maxAttempts           int
	byID                  bool              // groups are decided in the order of their ids: one partition, ordered mode
	rules                 map[string]*rules // by environment; at the empty name those of all others
	decided               idset.Set         // of group id div partitions
	averages              advantage.Averages
	groups                map[int64]*group
	memory                *memory
	late, second, refills int64 // Counts
}

// New gives the maker of cores for the partitions of traces. A rollout is tried again until attempt maxAttempts.
func New(run pipeline.RunConfig, cfg Config, maxAttempts int) func(partition int32, state []byte) (pipeline.Core, error) {
	return func(partition int32, state []byte) (pipeline.Core, error) {
		rules, err := rulesFor(run, cfg)
		if err := errors.Join(run.Validate(), err); err != nil {
			return nil, err
		}
		decided, averages, err := readState(state)
		if err != nil {
			return nil, fmt.Errorf("read the state of traces/%d: %w", partition, err)
		}
		c := &Core{
			partition: int64(partition), partitions: int64(run.TracePartitions), maxAttempts: maxAttempts,
			rules: rules, decided: decided, averages: averages, groups: map[int64]*group{}, memory: new(memory),
		}
		for _, r := range rules {
			c.byID = c.byID || r.needs.Order && run.Ordered()
		}
		return c, nil
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
		c.late++
		out.Finish(r.Ref)
		return nil
	}
	rules := c.rulesOf(t.Env)
	if err := check(t, rules.needs.Teacher); err != nil {
		return fmt.Errorf("score %v: group %d, rollout %d: %w", r.Ref, t.GroupID, t.RolloutIndex, err)
	}
	g := c.groups[t.GroupID]
	if g == nil {
		g = newGroup(t)
		c.groups[t.GroupID] = g
	}
	g.refs = append(g.refs, r.Ref)
	if g.add(t) {
		c.second++
	}
	if rules.Partial == Refill {
		if request := g.missing(t, c.maxAttempts); request != nil {
			c.refills++
			out.Emit(pipeline.TopicRequests, request)
		}
	}
	c.settle(g, t.WaveFirst, out)
	return nil
}

// settle decides the group if it is complete. Where groups are decided in the order of their ids, it decides the next of
// the wave that begins at group first, and goes on while they are complete. (Waves come one after the other.)
func (c *Core) settle(g *group, first int64, out *pipeline.Out) {
	for {
		if c.byID {
			g = c.groups[c.decided.MissingFrom(first)]
		}
		if g == nil {
			return
		}
		traces := g.complete()
		if traces == nil {
			return
		}
		c.decide(g, traces, out)
		if !c.byID {
			return
		}
	}
}

// decide ends a group.
func (c *Core) decide(g *group, traces []*schemas.Trace, out *pipeline.Out) {
	first, rules := g.first, c.rulesOf(g.first.Env)
	sg := &schemas.SampleGroup{
		Env: first.Env, GroupID: first.GroupID, TaskIndex: first.TaskIndex, Emitted: first.GroupSize,
		Step: first.Step, Wave: first.Wave, WaveFirst: first.WaveFirst, WaveLast: first.WaveLast,
		Reason: g.reason(traces), Rollouts: make([]schemas.RolloutFate, len(traces)),
	}
	if g.broken == nil && rules.enough(traces, sg.Reason) {
		sg.Reason = ""
	}
	for i, t := range traces {
		sg.Rollouts[i] = describe(t)
		if sg.Rollouts[i].Fate == "" {
			sg.Rollouts[i].Fate = sg.Reason
		}
	}
	if sg.Reason == "" {
		c.memory = c.memory.lend(sg)
		rules.score(traces, sg, c.averages, c.memory)
	}
	out.Emit(pipeline.TopicSamples, sg)
	for _, ref := range g.refs {
		out.Finish(ref)
	}
	c.decided.Add(first.GroupID / c.partitions)
	delete(c.groups, first.GroupID)
}

func (c *Core) rulesOf(env string) *rules {
	if r, ok := c.rules[env]; ok {
		return r
	}
	return c.rules[""]
}

// State is what decided groups have left behind: their ids, and averages.
func (c *Core) State() ([]byte, error) { return writeState(&c.decided, c.averages), nil }

// Counts implements pipeline.Counter: what leaves no record, since the core was made. Late traces were dropped, as their
// group was decided; second ones are of a rollout and attempt that had one already, as it was run twice or ended by a
// deadline as well; refills are failed attempts that were asked for again.
func (c *Core) Counts() map[string]int64 {
	return map[string]int64{"late": c.late, "second": c.second, "refills": c.refills}
}
