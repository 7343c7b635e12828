package stages

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/prl-project/prl/pipeline/audit"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// AuditName is the name under which --stage audits a run.
const AuditName = "audit"

// Audit holds what the run has left behind, topics, Parquet files and blobs, to the invariants. It reads only; the run
// must stand still.
func (a *App) Audit(ctx context.Context) (*audit.Report, error) {
	view, err := a.view(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit run %s: %w", a.Config.Run.Name, err)
	}
	view.follower.Close()
	return audit.Run(ctx, audit.Config{
		Runtime: a.Runtime, Envs: slices.Sorted(maps.Keys(a.Config.Envs)), Parquet: a.Config.Sink.Dir, Ended: view.ended(),
		Weights: true, Advantages: a.Config.advantages(),
	})
}

// advantages says how the scorer's settings make advantages of rewards, for the algorithms of which the auditor has one
// of its own.
func (c *Config) advantages() map[string]audit.Advantage {
	kinds := map[string]audit.Advantage{}
	for env := range c.Envs {
		name, std := c.Scorer.Advantage, c.Scorer.NormalizeStd
		if o := c.Scorer.Envs[env]; o.Advantage != "" {
			name = o.Advantage
		}
		if o := c.Scorer.Envs[env]; o.NormalizeStd != nil {
			std = *o.NormalizeStd
		}
		switch {
		case name != advantage.GRPO:
		case std:
			kinds[env] = audit.Standardized
		default:
			kinds[env] = audit.MeanFree
		}
	}
	return kinds
}
