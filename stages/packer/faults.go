package packer

import (
	"fmt"
	"maps"

	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/schemas"
)

// barrenBatches is how many batches' worth of rollouts must have ended one after the other, without a group that can be packed, until
// that is a fault; half of what stops the run, where that is less.
const barrenBatches = 2

// barren counts what has ended since the last group that can be packed. It is no part of the state.
type barren struct {
	rollouts int
	groups   map[string]int64 // by the filter that took them, or by their fate
	most     verdict          // the way in which most ended
}

func (b *barren) ended(g *schemas.SampleGroup, v verdict) {
	if v.fate == schemas.FatePacked || v.fate == schemas.FateCancelled {
		return
	}
	if b.groups == nil {
		b.groups = map[string]int64{}
	}
	b.rollouts += max(1, g.Emitted)
	if b.groups[v.by()]++; b.groups[v.by()] >= b.groups[b.most.by()] {
		b.most = verdict{fate: v.fate, filter: v.filter}
	}
}

// Faults implements pipeline.FaultKeeper: groups end, and none can be packed. That rollouts fail or take too long is for others
// to say.
func (c *Core) Faults() (kinds []faults.Fault, has []faults.Report) {
	kinds = []faults.Fault{faults.NothingTrained, faults.PolicyStale}
	enough := min(barrenBatches*c.run.BatchSize, max(1, c.cfg.ZeroOutputBatches*c.run.BatchSize/2))
	f, ok := faultOf(c.barren.most)
	if c.barren.rollouts < enough || !ok {
		return kinds, nil
	}
	return kinds, []faults.Report{{Fault: f, Why: fmt.Sprintf("the last %d rollouts gave no sample (groups by what ended them: %s)", c.barren.rollouts, figures(c.barren.groups))}}
}

// faultOf is the fault that a way to end shows.
func faultOf(v verdict) (f faults.Fault, ok bool) {
	switch v.fate {
	case schemas.FateStale:
		return faults.PolicyStale, true
	case schemas.FateFiltered, schemas.FateOverlong:
		return faults.NothingTrained, true
	}
	return f, false
}

// stops is the error of a run that the guard stops at a group, with the fault that it shows.
func (c *Core) stops(v verdict, err error) error {
	b := c.barren
	b.groups = maps.Clone(b.groups)
	b.ended(&schemas.SampleGroup{}, v)
	if f, ok := faultOf(b.most); ok {
		return &faults.Error{Fault: f, Err: err}
	}
	return err
}
