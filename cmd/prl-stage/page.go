package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/ui"
)

// showRun serves the page of a run with an embedded broker, which goes on in another process, or does not run.
func showRun(ctx context.Context, f flags, cfg *stages.Config) (err error) {
	if _, err := os.Stat(cfg.RunDir()); err != nil {
		return fmt.Errorf("run %s has not begun here: %w; --run and --config name the run", cfg.Run.Name, err)
	}
	addr, err := broker.Running(brokerDir(cfg))
	if err != nil {
		return err
	}
	app, err := stages.NewApp(cfg, []string{addr}, ui.Name, logger(cfg, slog.LevelWarn))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.Close()) }()
	return app.ShowRun(ctx, addr != "", os.Stdout)
}
