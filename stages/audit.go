package stages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"
	"sync/atomic"
	"time"

	"github.com/prl-project/prl/pipeline/audit"
	"github.com/prl-project/prl/stages/internal/progress"
	"github.com/prl-project/prl/stages/scorer/advantage"
	"github.com/prl-project/prl/stages/scorer/filter"
)

// AuditName is the name under which --stage audits a run.
const AuditName = "audit"

// Audit holds what the run has left behind, topics, Parquet files and blobs, to the invariants. It reads only; the run
// and its sink must stand still, all written, and the settings are those it began with: with others, right records would look wrong.
func (a *App) Audit(ctx context.Context) (*audit.Report, error) { return a.AuditShown(ctx, io.Discard) }

// AuditShown is Audit that shows on out how far it is.
func (a *App) AuditShown(ctx context.Context, out io.Writer) (*audit.Report, error) {
	var at atomic.Value
	at.Store("looks up the run")
	defer progress.Doing(out, func(since time.Duration) string {
		return fmt.Sprintf("audit of run %s: %s · for %v", a.Config.Run.Name, at.Load(), since)
	})()
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
		Weights: true, Advantages: a.Config.advantages(), Branchwise: a.Config.branchwise(),
		Progress: func(what string, records int) { at.Store(fmt.Sprintf("reads %s, %d records so far", what, records)) },
	})
}

// advantages says how the scorer's settings make advantages of rewards, for the algorithms of which the auditor has one
// of its own.
func (c *Config) advantages() map[string]audit.Advantage {
	kinds := map[string]audit.Advantage{}
	for env := range c.Envs {
		s, err := c.Scorer.Of(env)
		switch {
		case err != nil || s.Advantage != advantage.GRPO || s.LengthPenalty.On:
		case s.NormalizeStd:
			kinds[env] = audit.Standardized
		default:
			kinds[env] = audit.MeanFree
		}
	}
	return kinds
}

// branchwise are the environments of which filters may drop single branches: by what was sampled in them, or because only
// others have something to tell of an environment's answers.
func (c *Config) branchwise() map[string]bool {
	envs := map[string]bool{}
	for env := range c.Envs {
		s, err := c.Scorer.Of(env)
		f := s.Filters
		envs[env] = err == nil && (slices.Contains([]filter.Mode{f.Length.Mode, f.Gibberish.Mode, f.Repetition.Mode}, filter.Drop) ||
			s.Advantage == advantage.Echo && f.ZeroAdvantage.Mode == filter.Drop)
	}
	return envs
}
