package stages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/top"
	"github.com/prl-project/prl/stages/ui"
)

// Top shows the run that brokers have in a terminal. It needs nothing but them: what is not in the topics is not shown, but where
// the run ends if this machine knows it. known says that the settings are those of the run.
func Top(ctx context.Context, cfg *Config, brokers []string, known bool, o top.Options) error {
	log := slog.New(slog.DiscardHandler) // it would tear the picture; what is wrong stands in it
	schemas, err := pipeline.NewSchemaRegistry(cfg.SchemaRegistry, log)
	if err != nil {
		return err
	}
	rt := &pipeline.Runtime{Run: cfg.Run, Brokers: brokers, Kafka: cfg.Kafka, Instance: top.Name, Log: log, Schemas: schemas, Health: &pipeline.Health{}}
	found, err := rt.Find(ctx)
	if err != nil {
		return topFailed(ctx, cfg, err)
	}
	options := ui.Options{Stages: picture(), Envs: found.Envs}
	switch recorded, err := cfg.Recorded(); {
	case err == nil:
		options.MaxSteps = recorded.MaxSteps
	case !errors.Is(err, os.ErrNotExist):
		return err
	case known:
		options.MaxSteps = cfg.Run.MaxSteps
	}
	rt.Run = found.Run
	envs := map[string]emitter.EnvConfig{} // to count by; the emitter's own settings change nothing of that
	for _, env := range found.Envs {
		envs[env] = emitter.DefaultEnvConfig()
	}
	options.OpenGroups = func(state []byte) (groups, rollouts int, err error) {
		return emitter.Open(found.Run, emitter.DefaultConfig(), envs, state)
	}
	return topFailed(ctx, cfg, top.Run(ctx, ui.NewWatch(rt, options), o))
}

// topFailed says what could not be done; a run that was stopped looking at is no failure.
func topFailed(ctx context.Context, cfg *Config, err error) error {
	if err == nil || ctx.Err() != nil {
		return nil
	}
	return fmt.Errorf("show run %s: %w", cfg.Run.Name, err)
}

// TopRights are the least that --stage top needs: to read what the page does.
func TopRights(run string) []pipeline.Right {
	page, err := Find(ui.Name)
	if err != nil {
		panic(err) // it is in the table
	}
	var list []pipeline.Right
	for _, r := range page.Rights(run) {
		if r.Operation == pipeline.OperationRead {
			list = append(list, r)
		}
	}
	return list
}
