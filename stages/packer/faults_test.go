package packer

import (
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// TestFaults: groups that end without anything to pack are a fault after two batches' worth of rollouts, by what ended most of them,
// until one comes that can be packed.
func TestFaults(t *testing.T) {
	run := pipeline.DefaultRunConfig()
	run.BatchSize = 8
	for want, fate := range map[string]string{"NothingTrained": schemas.FateFiltered, "PolicyStale": schemas.FateStale, "": schemas.FateErrored} {
		c := &Core{run: run, cfg: DefaultConfig()}
		has := func() string {
			t.Helper()
			kinds, reports := c.Faults()
			if len(kinds) != 2 || len(reports) > 1 {
				t.Fatalf("%v %v", kinds, reports)
			}
			if len(reports) == 0 {
				return ""
			}
			return reports[0].Fault.Name
		}
		for n := range 5 {
			if got := has(); n < 4 && got != "" {
				t.Errorf("after %d groups: %s", n, got)
			}
			c.barren.ended(&schemas.SampleGroup{Emitted: 4}, verdict{fate: fate})
			c.barren.ended(&schemas.SampleGroup{Emitted: 4}, verdict{fate: schemas.FateCancelled})
		}
		if got := has(); got != want {
			t.Errorf("%s: %q, want %q", fate, got, want)
		}
		c.held = map[int64]*held{}
		c.hold(&held{group: &schemas.SampleGroup{GroupID: 1}})
		if got := has(); got != "" {
			t.Errorf("with a group to pack: %s", got)
		}
	}
}
