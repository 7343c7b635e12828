package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prl-project/prl/stages"
)

// readOrigin looks up what --from names; nil without it. An embedded broker of that run is started for the while.
func readOrigin(ctx context.Context, f flags, cfg *stages.Config) (*stages.Origin, error) {
	if f.From == "" {
		return nil, nil
	}
	origin, err := stages.ParseOrigin(f.From)
	if err != nil {
		return nil, err
	}
	if origin.Run == cfg.Run.Name {
		return nil, fmt.Errorf("--from %s: the run itself; give the new one another name (--run)", f.From)
	}
	other := *cfg
	other.Run.Name, other.Sink.Dir = origin.Run, ""
	if _, err := os.Stat(other.RunDir()); err != nil {
		return nil, fmt.Errorf("--from %s: the weights of that run are not here: %w", f.From, err)
	}
	work := func(ctx context.Context, brokers []string) (err error) {
		app, err := stages.NewApp(&other, brokers, stages.SetupName, logger(f, slog.LevelWarn))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, app.Close()) }()
		return origin.Read(ctx, app)
	}
	if cfg.Brokers[0] != stages.Embedded {
		return origin, work(ctx, cfg.Brokers)
	}
	f.Fresh = false // that is for the new run
	return origin, withBroker(ctx, f, &other, work)
}
