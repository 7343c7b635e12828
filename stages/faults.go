package stages

import (
	"context"
	"slices"
	"sync"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/ui"
)

// watched runs a stage and notes the error it ends with.
func (a *App) watched(ctx context.Context, s Stage, r Runner) error {
	err := r.Run(ctx)
	a.Runtime.Ended(s.Name, err)
	return err
}

// RunStage runs a stage until ctx ends or it fails. Meanwhile the pages of the run are told of the faults of the process, and at
// the end with which one it ended.
func (a *App) RunStage(ctx context.Context, s Stage, r Runner) error {
	if s.tells() {
		defer a.tellFaults(ctx, s.Name)()
	}
	return a.watched(ctx, s, r)
}

// RefusedAtStart tells the pages of the run of stages that may not do what their set-up needs.
func (a *App) RefusedAtStart(ctx context.Context, err error, run ...Stage) {
	if !pipeline.Refused(err) {
		return
	}
	for _, s := range run {
		a.Runtime.Ended(s.Name, err)
	}
	if len(run) == 0 || slices.ContainsFunc(run, Stage.tells) {
		a.tellFaults(ctx, "")()
	}
}

// tells reports whether a process of the stage tells of its faults on the topic metrics. The page does not: it shows its own, and
// has no right to write.
func (s Stage) tells() bool { return s.Name != ui.Name }

// tellFaults tells of the faults of the process, which runs one stage or, with an empty name, all of them, until stop is called, which waits until the last of them are told.
func (a *App) tellFaults(ctx context.Context, stage string) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	var wg sync.WaitGroup
	wg.Go(func() { a.Runtime.TellFaults(ctx, stage) })
	return func() {
		cancel()
		wg.Wait()
	}
}
