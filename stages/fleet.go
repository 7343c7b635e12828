package stages

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/envserver"
	"github.com/prl-project/prl/stages/inference"
)

// A Fleet is one process of a stage, environment servers or inference, that serves several runs.
//
// Every run has a server of its own there, as if it were alone: its topics, groups, transactional ids, settings, rights, logs
// and metrics. They share the slots and environments, or the model's decoder and memory, and nothing that decides what a
// rollout is: a run's records are what they would be without the others (I6), and which run's turn it is only when they come.
// The share of a run is the fleet's word and stands in its configuration. It is in no record: a run cannot claim more than
// whoever runs the fleet grants it, and a task is the same bytes wherever it is played.
//
// What goes wrong with one run stops none of the others: it is said in the log, and tried again, at first after a second and
// then once a minute, until the run works or is taken off the list. A run whose name another process has taken is not tried
// again, and one that has published its last version and asks for nothing more is let go.
type Fleet struct {
	stage    Stage
	brokers  []string
	instance string
	log      *slog.Logger
	health   *pipeline.Health
	leave    bool
	serve    []string
	slots    *envserver.Fleet // of environment servers
	models   *inference.Fleet // of inference
	envs     *sharedEnvs

	mu      sync.Mutex
	cfg     *Config
	members map[string]*member
	asked   bool           // the list may be another
	running sync.WaitGroup // members
	changed chan struct{}  // of capacity 1: the list, or a member has ended
}

// NewFleet makes the process of a stage for the runs of cfg.Fleet. serve are the environments to serve, empty for all that a
// run has; leave gives partitions up for good at the end.
func NewFleet(cfg *Config, stage Stage, brokers []string, instance string, serve []string, leave bool, log *slog.Logger) (*Fleet, error) {
	if err := cfg.ValidateFleet(stage); err != nil {
		return nil, err
	}
	f := &Fleet{
		stage: stage, brokers: brokers, instance: instance, log: log, health: &pipeline.Health{}, leave: leave, serve: serve,
		envs: newSharedEnvs(), cfg: cfg, members: map[string]*member{}, changed: make(chan struct{}, 1),
	}
	var err error
	if stage.Name == inference.Stage {
		f.models, err = inference.NewFleet(cfg.Inference, log)
	} else {
		f.slots, err = envserver.NewFleet(cfg.EnvServer)
	}
	f.health.Set("fleet", false)
	return f, err
}

// Health is ready while some run of the fleet is served: one that is not must not have the others' traffic taken away.
func (f *Fleet) Health() *pipeline.Health { return f.health }

// Gather implements prometheus.Gatherer: the metrics of all runs, each with the label run.
func (f *Fleet) Gather() ([]*dto.MetricFamily, error) {
	var all prometheus.Gatherers
	f.mu.Lock()
	for _, name := range slices.Sorted(maps.Keys(f.members)) {
		if reg := f.members[name].registry.Load(); reg != nil {
			all = append(all, reg)
		}
	}
	f.mu.Unlock()
	return all.Gather()
}

// Run serves until ctx ends. An error is one of the whole process: a run's own is logged.
func (f *Fleet) Run(ctx context.Context) error {
	work, cancel := context.WithCancel(ctx)
	defer cancel()
	shared := make(chan error, 1)
	end, stopShared := context.WithCancel(context.WithoutCancel(ctx))
	defer stopShared()
	if f.models != nil {
		go func() {
			err := f.models.Run(end)
			cancel()
			shared <- err
		}()
	} else {
		shared <- nil
	}
	look := time.NewTicker(time.Second)
	defer look.Stop()
	f.hold(work)
	for work.Err() == nil {
		select {
		case <-work.Done():
		case <-f.changed:
			f.hold(work)
		case <-look.C:
			f.look()
		}
	}
	cancel()
	f.running.Wait()
	stopShared()
	return errors.Join(<-shared, f.envs.close())
}

// Change gives the fleet another list of runs. Everything else in a configuration counts from the next start of the process.
func (f *Fleet) Change(cfg *Config) {
	f.mu.Lock()
	now := *f.cfg
	now.Fleet = cfg.Fleet
	f.cfg, f.asked = &now, true
	f.mu.Unlock()
	f.nudge()
}

// hold begins with the runs that are listed and not served, and gives up those that are not listed any more.
func (f *Fleet) hold(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, m := range f.members {
		want, listed := f.cfg.Fleet.Runs[name]
		if !listed {
			m.giveUp()
		} else {
			m.setShare(want.Share)
		}
		// One that was let go stays so until somebody changes the list, and a run has one server at a time.
		if m.over() && (f.asked || !listed || m.gone.Load()) {
			delete(f.members, name)
		}
	}
	f.asked = false
	for name := range f.cfg.Fleet.Runs {
		if f.members[name] == nil && ctx.Err() == nil {
			f.members[name] = f.join(ctx, name)
		}
	}
}

// look says whether some run is served.
func (f *Fleet) look() {
	f.mu.Lock()
	defer f.mu.Unlock()
	ready := len(f.cfg.Fleet.Runs) == 0
	for _, m := range f.members {
		ready = ready || m.works()
	}
	f.health.Set("fleet", ready)
}

// config is that of the process, as it is now.
func (f *Fleet) config() *Config {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.cfg
}

// nudge lets Run look at the list again.
func (f *Fleet) nudge() {
	select {
	case f.changed <- struct{}{}:
	default:
	}
}
