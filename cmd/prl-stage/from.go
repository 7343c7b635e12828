package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
)

// parseOrigin reads --from; nil without it.
func parseOrigin(f flags, cfg *stages.Config) (*stages.Origin, error) {
	if f.From == "" {
		return nil, nil
	}
	origin, err := stages.ParseOrigin(f.From)
	if err == nil && origin.Run == cfg.Run.Name {
		err = fmt.Errorf("--from %s: the run itself; give the new one another name (--run)", f.From)
	}
	return origin, err
}

// begin makes the app's run begin where --from says, unless it has.
func begin(ctx context.Context, f flags, cfg *stages.Config, a *stages.App, origin *stages.Origin) error {
	if origin == nil {
		return nil
	}
	if begun, err := a.Begun(ctx, origin); begun || err != nil {
		return err
	}
	if err := readOrigin(ctx, f, cfg, origin); err != nil {
		return err
	}
	return a.Begin(ctx, origin)
}

// readOrigin looks up what the origin's run has to give. Its embedded broker, if it does not run, is started for the while.
func readOrigin(ctx context.Context, f flags, cfg *stages.Config, origin *stages.Origin) error {
	other := *cfg
	other.Run.Name, other.Sink.Dir = origin.Run, ""
	if _, err := os.Stat(other.RunDir()); err != nil {
		return fmt.Errorf("--from %s: the weights of that run are not here: %w", f.From, err)
	}
	work := func(ctx context.Context, brokers []string) (err error) {
		app, err := stages.NewApp(&other, brokers, stages.SetupName, logger(cfg, slog.LevelWarn))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, app.Close()) }()
		defer stages.Doing(stderr(), fmt.Sprintf("reads %s, where run %s begins", f.From, cfg.Run.Name))()
		return origin.Read(ctx, app)
	}
	if cfg.Brokers[0] != stages.Embedded {
		return work(ctx, cfg.Brokers)
	}
	addr, err := broker.Running(brokerDir(&other))
	if err != nil {
		return err
	}
	if addr != "" {
		return work(ctx, []string{addr})
	}
	f.Fresh = false // that is for the new run
	return withBroker(ctx, f, &other, work)
}
