package packer

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A guard counts what ended without samples since the last group that had some. It is no part of the state: all it can
// do is stop the run, and a new start has the whole allowance again.
type guard struct {
	rollouts int
	groups   map[string]int64 // by the filter that took them, or by their fate
	err      string           // of a rollout that failed, the newest
}

// withoutSamples counts a group that ends without samples, and stops a run in which nothing else has come for
// zero_output_batches batches' worth of rollouts: it would turn for ever. It changes nothing where it stops.
func (c *Core) withoutSamples(g *schemas.SampleGroup, v verdict) error {
	rollouts := c.guard.rollouts + max(1, g.Emitted)
	groups, failed := maps.Clone(c.guard.groups), c.guard.err
	if groups == nil {
		groups = map[string]int64{}
	}
	groups[v.by()]++
	for _, r := range g.Rollouts {
		failed = cmp.Or(r.Error, failed)
	}
	if rollouts >= c.cfg.ZeroOutputBatches*c.run.BatchSize {
		return c.stops(v, pipeline.Fatal("step %d: the last %d rollouts, %d batches' worth, gave no sample (groups by what ended them: %s)%s: %s, or raise packer.zero_output_batches = %d; the next start has the whole allowance again",
			c.state.Step+1, rollouts, c.cfg.ZeroOutputBatches, figures(groups), lastError(failed), remedy, c.cfg.ZeroOutputBatches))
	}
	c.guard = guard{rollouts, groups, failed}
	return nil
}

// remedy is what helps where rollouts come and none can be trained on.
const remedy = "mend what fails, make the tasks easier or the rewards finer, set the filter to monitor"

func lastError(failed string) string {
	if failed == "" {
		return ""
	}
	return fmt.Sprintf("; the last error was %q", failed)
}

// by names what ended a group, for the guard's figures.
func (v verdict) by() string {
	if v.filter != "" {
		return "filter " + v.filter
	}
	return v.fate
}

func figures(groups map[string]int64) string {
	var s []string
	for _, by := range slices.Sorted(maps.Keys(groups)) {
		s = append(s, fmt.Sprintf("%s %d", by, groups[by]))
	}
	return strings.Join(s, ", ")
}
