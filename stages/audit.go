package stages

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/prl-project/prl/pipeline/audit"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// AuditName is the name under which --stage audits a run.
const AuditName = "audit"

// Audit holds what the run has left behind, topics, Parquet files and blobs, to the invariants. It reads only; the run
// and its sink must stand still, all written, and the settings are those it began with: with others, right records would look wrong.
func (a *App) Audit(ctx context.Context) (*audit.Report, error) {
	err := a.Config.asBegun()
	if err == nil && len(a.Config.SchemaRegistry.URLs) == 0 {
		err = a.Config.agreeFraming()
	}
	if err != nil {
		return nil, fmt.Errorf("audit run %s: %w", a.Config.Run.Name, err)
	}
	view, err := a.view(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit run %s: %w", a.Config.Run.Name, err)
	}
	view.follower.Close()
	if _, err := os.Stat(a.Config.Sink.Dir); errors.Is(err, fs.ErrNotExist) {
		a.Runtime.Log.Warn("the run has no Parquet files here: they are not held to the topics", "dir", a.Config.Sink.Dir)
		a.Config.Sink.Dir = ""
	}
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
