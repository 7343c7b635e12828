package stages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/internal/progress"
	"github.com/prl-project/prl/stages/trainer"
)

// endDeadline bounds the time after the final policy version in which nothing is decided, beyond the longest that a group
// may be open.
const endDeadline = 5 * time.Minute

// RunAll runs every stage in this process until the run has ended or ctx does, showing its progress on out. Started
// again, it goes on where it stopped. The sink stops last, so that everything can be queried.
func (a *App) RunAll(ctx context.Context, out io.Writer) error {
	if len(a.Config.Envs) == 0 {
		return fmt.Errorf("no environments: the configuration needs a section [envs.<name>]; configs/demo.toml is an example (--config)")
	}
	if err := a.Config.record(); err != nil {
		return err
	}
	start := time.Now()
	a.says = out
	view, err := a.view(ctx)
	if err != nil {
		return err
	}
	defer view.follower.Close()
	if !view.ended() {
		printer := progress.NewPrinter(out)
		if err := a.openPage(out); err != nil {
			return err
		}
		wanted := func(s Stage) bool { return s.Optional == nil || s.Optional(a.Config) }
		if err := a.runStages(ctx, wanted, func(ctx context.Context) error { return view.watch(ctx, printer) }); err != nil {
			return err
		}
	}
	if !view.ended() {
		fmt.Fprintf(out, "stopped; the same command goes on from here\n")
		return nil
	}
	fmt.Fprint(out, view.Summary(time.Since(start)))
	version, _ := view.Final()
	model, err := a.export(ctx, version)
	if err != nil {
		return err
	}
	fmt.Fprintf(out, "The model, as a Hugging Face folder:  %s\n", model)
	fmt.Fprint(out, a.query())
	return nil
}

// query says how the run is asked with SQL.
func (a *App) query() string {
	return fmt.Sprintf("Ask it with SQL:  duckdb -cmd \"SET VARIABLE run = '%s'\" -cmd \".read deploy/duckdb/views.sql\"\n", a.Config.RunDir())
}

// export puts a version where transformers loads it from, unless it is there.
func (a *App) export(ctx context.Context, version int64) (dir string, err error) {
	dir = filepath.Join(a.Config.RunDir(), fmt.Sprintf("model-%d", version))
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	return dir, trainer.Export(ctx, a.Runtime, a.Config.Model, version, dir)
}

// runStages runs the stages that are wanted until watch returns, the sink last.
func (a *App) runStages(ctx context.Context, wanted func(Stage) bool, watch func(ctx context.Context) error) error {
	var all, last []func(context.Context) error
	for _, s := range Flow {
		if !wanted(s) {
			continue
		}
		made, err := a.Make(s)
		if err != nil {
			return fmt.Errorf("stage %s: %w", s.Name, err)
		}
		r := func(ctx context.Context) error {
			err := a.watched(ctx, s, made)
			if s.Aside {
				return nil // it is told of, and the run goes on without it
			}
			return err
		}
		if s.Name == "sink" {
			last = append(last, r)
		} else {
			all = append(all, r)
		}
	}
	stopTelling := func() {}
	if a.measures == nil { // who only measures may not write metrics
		stopTelling = a.tellFaults(ctx, "")
	}
	sinkCtx, stopSink := context.WithCancel(context.WithoutCancel(ctx))
	defer stopSink()
	var sinks errgroup.Group
	work, stopWork := context.WithCancel(ctx)
	defer stopWork()
	group, groupCtx := errgroup.WithContext(work)
	for _, r := range last {
		sinks.Go(func() error {
			err := r(sinkCtx)
			if err != nil {
				stopWork()
			}
			return err
		})
	}
	for _, r := range all {
		group.Go(func() error { return r(groupCtx) })
	}
	group.Go(func() error {
		defer stopWork()
		return watch(groupCtx)
	})
	err := group.Wait()
	stopTelling() // while the sink still reads
	stopSink()
	if a.says != nil {
		defer progress.Doing(a.says, func(since time.Duration) string {
			return fmt.Sprintf("the sink writes the rest into files · for %v", since)
		})()
	}
	return errors.Join(err, sinks.Wait())
}

// A view is the progress of the run, fed from its topics.
type view struct {
	progress.View
	follower *pipeline.Follower
	evals    []string
	patience time.Duration // without anything decided, after the final version
}

// view opens the progress of the run and reads what there is.
func (a *App) view(ctx context.Context) (*view, error) {
	f, err := a.Runtime.For("all").Follow(progress.Topics...)
	if err != nil {
		return nil, err
	}
	v := &view{
		View: progress.View{MaxSteps: a.Config.Run.MaxSteps, Envs: slices.Sorted(maps.Keys(a.Config.Envs)), Here: true, OpenGroups: func(state []byte) (groups, rollouts int, err error) {
			return emitter.Open(a.Config.Run, a.Config.Emitter, a.Config.Envs, state)
		}},
		follower: f, evals: slices.Sorted(maps.Keys(a.Config.Evals)), patience: endDeadline,
	}
	for _, e := range a.Config.Envs {
		v.patience = max(v.patience, endDeadline+time.Duration(e.GroupTimeout))
	}
	for _, e := range a.Config.Evals {
		v.patience = max(v.patience, endDeadline+time.Duration(e.GroupTimeout))
	}
	recs, err := f.Load(ctx)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("read what the run has done so far: %w", err)
	}
	v.feed(recs)
	v.Restart(time.Now())
	return v, nil
}

func (v *view) feed(recs []pipeline.Record) {
	for _, r := range recs {
		v.Feed(r)
	}
}

func (v *view) ended() bool { return v.Waiting(v.evals) == "" }

// watch shows the progress until the run has ended.
func (v *view) watch(ctx context.Context, printer *progress.Printer) error {
	defer printer.Close()
	settled, since := v.Settled(), time.Now()
	for !v.ended() {
		poll, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
		recs, err := v.follower.Poll(poll)
		if errors.Is(err, pipeline.ErrTransient) {
			<-poll.Done() // it may fail at once, again and again
			err = nil
		}
		cancel()
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			return nil
		}
		v.feed(recs)
		printer.Show(&v.View, time.Now())
		if n := v.Settled(); n != settled {
			settled, since = n, time.Now()
		}
		if _, final := v.Final(); final && time.Since(since) > v.patience {
			return pipeline.Fatal("the final version is out, but nothing was decided for %v while the run waits for %s; start again to let it end", v.patience, v.Waiting(v.evals))
		}
	}
	printer.Show(&v.View, time.Now())
	return nil
}
