package stages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cenkalti/backoff/v5"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
)

// A member is a run of a fleet. One goroutine leads it.
type member struct {
	fleet  *Fleet
	name   string
	log    *slog.Logger
	cancel context.CancelFunc
	done   chan struct{} // closed when its goroutine has ended

	gone     atomic.Bool // it was taken off the list
	share    atomic.Pointer[float64]
	registry atomic.Pointer[prometheus.Registry]
	health   atomic.Pointer[pipeline.Health]
	server   atomic.Pointer[Runner]
}

// What a server of a fleet may be told and asked beside a Runner's.
type (
	sharer interface{ SetShare(share float64) }
	idler  interface{ Idle() bool } // the run's last version is out, and it asks for nothing
)

var (
	errRunEnded = errors.New("the run has published its last policy version and asks for nothing more")
	errNoWork   = errors.New("the brokers do not let the run do its work")
	errNotBegun = errors.New("it has not begun")
)

// repeat is how often the log says again what keeps a run from being served.
const repeat = 10 * time.Minute

// join begins with a run. The lock is held.
func (f *Fleet) join(ctx context.Context, name string) *member {
	ctx, cancel := context.WithCancel(ctx)
	m := &member{fleet: f, name: name, log: f.log.With("run", name), cancel: cancel, done: make(chan struct{})}
	share := f.cfg.Fleet.Runs[name].Share
	m.share.Store(&share)
	f.running.Go(func() {
		defer f.nudge()
		defer close(m.done)
		m.lead(ctx)
	})
	return m
}

// over reports whether the member has ended.
func (m *member) over() bool {
	select {
	case <-m.done:
		return true
	default:
		return false
	}
}

// giveUp ends a member whose run is not served any more.
func (m *member) giveUp() {
	if !m.gone.Swap(true) {
		m.log.Info("the run is taken off the fleet")
	}
	m.cancel()
}

func (m *member) setShare(share float64) {
	if *m.share.Swap(&share) == share {
		return
	}
	m.log.Info("the run has another share", "share", share)
	if s := m.server.Load(); s != nil {
		if s, ok := (*s).(sharer); ok {
			s.SetShare(share)
		}
	}
}

// works reports whether the run is served.
func (m *member) works() bool {
	h := m.health.Load()
	return h != nil && h.Working()
}

// lead serves the run until ctx ends or the run has, whatever fails on the way.
func (m *member) lead(ctx context.Context) {
	wait := backoff.NewExponentialBackOff()
	wait.InitialInterval, wait.MaxInterval = time.Second, time.Minute
	said, at := "", time.Time{}
	for {
		start := time.Now()
		err := m.serve(ctx)
		switch {
		case errors.Is(err, errRunEnded):
			m.log.Info("the run has ended: the fleet lets it go")
			return
		case ctx.Err() != nil:
			if err != nil {
				m.log.Warn("the run's server did not stop in order", "error", err)
			}
			return
		case errors.Is(err, pipeline.ErrFenced):
			m.log.Error("the run is not served here any more: another process works under this one's name there; give one of them another --instance, then change the list of runs or start again", "instance", m.fleet.instance, "error", err)
			return
		}
		if time.Since(start) > 2*time.Minute {
			wait.Reset()
		}
		if err.Error() != said || time.Since(at) > repeat {
			if errors.Is(err, errNotBegun) {
				m.log.Warn("the fleet waits for the run; it looks again at least once a minute", "error", err)
			} else {
				m.log.Error("the run is not served at the moment; the others go on, and it is tried again, at least once a minute", "error", err)
			}
			said, at = err.Error(), time.Now()
		}
		pause := wait.NextBackOff()
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// serve serves the run once.
func (m *member) serve(ctx context.Context) (err error) {
	f := m.fleet
	cfg, err := f.config().ofRun(m.name)
	if err != nil {
		return err
	}
	app, err := NewApp(cfg, f.brokers, f.instance, f.log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.Close()) }()
	app.member, app.Runtime.Leave, app.Runtime.Joins = m, f.leave, true
	if app.Serve, err = f.served(cfg); err != nil {
		return err
	}
	if err := app.joinRun(ctx, f.stage); err != nil {
		return err
	}
	runner, err := app.Make(f.stage)
	if err != nil {
		return err
	}
	m.registry.Store(app.Registry)
	m.health.Store(app.Runtime.Health)
	m.server.Store(&runner)
	defer m.registry.Store(nil)
	defer m.health.Store(nil)
	defer m.server.Store(nil)
	m.log.Info("the fleet serves a run", "stage", f.stage.Name, "share", *m.share.Load(), "envs", app.Serve)
	work, stop := context.WithCancelCause(context.WithoutCancel(ctx))
	defer stop(nil)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		stop(m.watch(ctx, work, app, runner))
	}()
	err = app.RunStage(work, f.stage, runner)
	cause := context.Cause(work)
	stop(nil)
	<-watched
	if errors.Is(cause, errRunEnded) || errors.Is(cause, errNoWork) {
		err = errors.Join(cause, err)
	}
	return err
}

// watch returns why the run is to be served no longer: ctx has ended, or the run, or it is kept from its work. It returns with
// work, too.
func (m *member) watch(ctx, work context.Context, app *App, r Runner) error {
	cfg := app.Config.Fleet
	look := time.NewTicker(max(time.Millisecond, min(time.Second, time.Duration(cfg.Linger)/4, time.Duration(cfg.Patience)/4)))
	defer look.Stop()
	idle, worked := time.Now(), time.Now()
	for {
		select {
		case <-work.Done():
			return nil
		case <-ctx.Done():
			// Others of the run take over what it had, at once.
			app.Runtime.Leave = app.Runtime.Leave || m.gone.Load()
			return context.Cause(ctx)
		case now := <-look.C:
			if i, ok := r.(idler); !ok || !i.Idle() {
				idle = now
			}
			if app.Runtime.Health.Working() || m.fleet.slots == nil {
				worked = now
			}
			switch {
			case now.Sub(idle) > time.Duration(cfg.Linger):
				app.Runtime.Leave = true
				return errRunEnded
			case now.Sub(worked) > time.Duration(cfg.Patience):
				return fmt.Errorf("%w, for %v: do its topics exist, and may this user read and write them?", errNoWork, now.Sub(worked).Round(time.Second))
			}
		}
	}
}

// served are the environments of a run that this process serves: of those that it was told, which the run has.
func (f *Fleet) served(cfg *Config) ([]string, error) {
	has := slices.Sorted(maps.Keys(cfg.Envs))
	if len(f.serve) == 0 || len(has) == 0 || f.slots == nil {
		return f.serve, nil
	}
	var names []string
	for _, name := range f.serve {
		if slices.Contains(has, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("run %s has none of the environments that this process serves (--env %v): it has %v", cfg.Run.Name, f.serve, has)
	}
	return names, nil
}

// joinRun is SetUp for a run that others have begun: nothing is made or written down.
func (a *App) joinRun(ctx context.Context, stage Stage) error {
	if err := a.Config.asBegun(); err != nil {
		return err
	}
	if a.Runtime.Schemas != nil {
		if err := a.Runtime.Schemas.Resolve(ctx); err != nil {
			return err
		}
	}
	if err := a.Config.agreeFraming(); err != nil {
		return err
	}
	return a.Runtime.SetUp(ctx, a.envs(), stage.Rights(a.Config.Run.Name)...)
}
