package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"log/slog"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
)

// reloadEvery is how often the file of a fleet is looked at.
const reloadEvery = 5 * time.Second

// takeRuns sorts out --run: one is the run of every stage, several are those of a fleet.
func (f *flags) takeRuns() error {
	switch {
	case len(f.Runs) == 1:
		f.Run = f.Runs[0]
	case len(f.Runs) > 1 && (f.plays() || f.Serve.Serve != ""):
		return fmt.Errorf("several --run: an environment by hand belongs to none; leave --run out")
	case len(f.Runs) > 1 && f.Stage != "envserver" && f.Stage != "inference":
		return fmt.Errorf("--run %s: --stage %s serves one run; several are for --stage envserver and --stage inference", strings.Join(f.Runs, " --run "), f.Stage)
	}
	return nil
}

// fleet reports whether the process serves the runs of a fleet: several of --run, or without one those of the file.
func (f flags) fleet(cfg *stages.Config) bool {
	serves := f.Stage == "envserver" || f.Stage == "inference"
	return serves && !f.plays() && f.Serve.Serve == "" && (len(f.Runs) > 1 || f.Run == "" && len(cfg.Fleet.Runs) > 0)
}

// fleetConfig are the settings of a fleet: --run names its runs, where it does, with what the file says of them.
func (f flags) fleetConfig() (*stages.Config, error) {
	cfg, err := configure(f)
	if err != nil || len(f.Runs) == 0 {
		return cfg, err
	}
	listed := cfg.Fleet.Runs
	cfg.Fleet.Runs = map[string]stages.FleetRunConfig{}
	for _, name := range f.Runs {
		run, ok := listed[name]
		if !ok {
			run = stages.DefaultFleetRunConfig()
		}
		cfg.Fleet.Runs[name] = run
	}
	return cfg, cfg.Fleet.Validate()
}

// runFleet serves several runs with one process of a stage.
func runFleet(ctx context.Context, f flags, stage stages.Stage) error {
	cfg, err := f.fleetConfig()
	if err != nil {
		return err
	}
	if f.Env, err = named(f.Env, cfg); err != nil {
		return err
	}
	// Its own files are beside the folders of the runs.
	dir := filepath.Join(cfg.Dir, ".fleet")
	log := pipeline.NewLogger(stderr(), cfg.Log, slog.LevelInfo, filepath.Join(dir, "logs"), "")
	instance := f.Instance
	if instance == "" {
		name, release, err := pipeline.ClaimInstance(filepath.Join(dir, "locks"), stage.Name)
		if err != nil {
			return err
		}
		defer func() {
			if err := release(); err != nil {
				log.Warn("instance lock not released", "error", err)
			}
		}()
		instance = "fleet-" + name // a process of one run on this machine has the other name
	}
	log = log.With("instance", instance)
	fleet, err := stages.NewFleet(cfg, stage, cfg.Brokers, instance, f.Env, f.Leave, log)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	served := make(chan error, 1)
	go func() {
		var err error
		if cfg.Telemetry != "" {
			if err = pipeline.ServeTelemetry(ctx, cfg.Telemetry, cfg.TelemetryPprof, fleet, fleet.Health(), log); err != nil {
				cancel(err)
			}
		}
		served <- err
	}()
	go followFile(ctx, f, fleet, log)
	err = fleet.Run(ctx)
	cancel(nil)
	return errors.Join(err, <-served)
}

// followFile gives the fleet the list of runs anew when its file has changed, and on SIGHUP.
func followFile(ctx context.Context, f flags, fleet *stages.Fleet, log *slog.Logger) {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	defer signal.Stop(hup)
	look := time.NewTicker(reloadEvery)
	defer look.Stop()
	was, _ := os.ReadFile(f.Config) // one that cannot be read has been complained about
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
			was, _ = os.ReadFile(f.Config)
		case <-look.C:
			if f.Config == "" {
				continue
			}
			is, err := os.ReadFile(f.Config)
			if err != nil || bytes.Equal(is, was) {
				continue
			}
			was = is
		}
		cfg, err := f.fleetConfig()
		if err != nil {
			log.Error("the fleet goes on with the runs it has: its configuration cannot be used", "error", err)
			continue
		}
		log.Info("the fleet's list of runs was read again", "runs", len(cfg.Fleet.Runs))
		fleet.Change(cfg)
	}
}
