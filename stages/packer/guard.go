package packer

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// withoutSamples counts a group that ends without samples, and stops a run in which nothing else has come for
// zero_output_batches batches' worth of rollouts: it would turn for ever. It changes nothing where it stops.
func (c *Core) withoutSamples(g *schemas.SampleGroup, v verdict) error {
	groups := maps.Clone(c.state.Guard.Groups)
	if groups == nil {
		groups = map[string]int64{}
	}
	by := v.fate
	if v.filter != "" {
		by = "filter " + v.filter
	}
	groups[by]++
	rollouts := c.state.Guard.Rollouts + max(1, g.Emitted)
	if rollouts >= c.cfg.ZeroOutputBatches*c.run.BatchSize {
		return pipeline.Fatal("step %d: the last %d rollouts, %d batches' worth, gave no sample (groups by what ended them: %s): "+
			"make the tasks easier or the rewards finer, set the filter to monitor, or raise packer.zero_output_batches = %d",
			c.state.Step+1, rollouts, c.cfg.ZeroOutputBatches, figures(groups), c.cfg.ZeroOutputBatches)
	}
	c.state.Guard.Rollouts, c.state.Guard.Groups = rollouts, groups
	return nil
}

func figures(groups map[string]int64) string {
	var s []string
	for _, by := range slices.Sorted(maps.Keys(groups)) {
		s = append(s, fmt.Sprintf("%s %d", by, groups[by]))
	}
	return strings.Join(s, ", ")
}
