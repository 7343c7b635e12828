package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/board"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/export"
	"github.com/prl-project/prl/stages/trainer"
)

// fanoutFlags are those of the stages that only look at a run: settings of the sections [export] and [shadow].
type fanoutFlags struct {
	Shadow    string   `help:"Name of the shadow trainer (shadow.name); --set trainer.… gives it settings of its own." placeholder:"NAME" group:"Beside a run:" for:"shadow"`
	Out       string   `help:"Folder that --stage export makes (export.out); default: export in the run's folder." placeholder:"FOLDER" group:"Beside a run:" for:"export"`
	Format    []string `help:"jsonl, parquet or both (export.formats)." placeholder:"NAME" group:"Beside a run:" for:"export"`
	Force     bool     `help:"Replace an export that is there." group:"Beside a run:" for:"export"`
	Follow    bool     `help:"Export from the topics while the run goes on, in parts of one format." group:"Beside a run:" for:"export"`
	MinReward *float64 `help:"Take what has this reward at least." placeholder:"X" group:"Beside a run:" for:"export"`
	Best      int      `help:"Take the N best conversations of each task." placeholder:"N" group:"Beside a run:" for:"export"`
	Fate      string   `help:"What became of the rollouts: packed (they were trained on), or any." placeholder:"NAME" group:"Beside a run:" for:"export"`
	MaxTokens int      `help:"Take conversations of so many tokens at most." placeholder:"N" group:"Beside a run:" for:"export"`
	Truncated bool     `help:"Take rollouts that a limit has cut, too." group:"Beside a run:" for:"export"`
	Evals     bool     `help:"Take rollouts of evals, too: nobody can be measured on these tasks any more who is trained on them." group:"Beside a run:" for:"export"`
	TestShare float64  `help:"Share of the tasks that go into the split test." placeholder:"X" group:"Beside a run:" for:"export"`
}

// fansOut reports whether the stage is one that only looks at a run.
func (f flags) fansOut() bool {
	return f.Stage == board.Name || f.Stage == trainer.Shadow || f.Stage == export.Name
}

// sets are the settings that the flags are.
func (f fanoutFlags) sets(stage string, env []string, from, to int64) (sets []string) {
	add := func(given bool, format string, v any) {
		if given {
			sets = append(sets, fmt.Sprintf(format, v))
		}
	}
	add(f.Shadow != "", "shadow.name=%q", f.Shadow)
	add(stage == trainer.Shadow && from > 0, "shadow.from_version=%d", from)
	if stage != export.Name {
		return sets
	}
	add(f.Out != "", "export.out=%q", f.Out)
	formats := f.Format
	if len(formats) == 0 && f.Follow {
		formats = []string{export.JSONL}
	}
	add(len(formats) > 0, "export.formats=[%s]", quoted(formats))
	add(len(env) > 0, "export.envs=[%s]", quoted(env))
	add(f.Force, "export.force=%v", true)
	add(f.Follow, "export.follow=%v", true)
	if f.MinReward != nil {
		add(true, "export.min_reward=%v", *f.MinReward)
	}
	add(f.Best != 0, "export.best=%d", f.Best)
	add(f.Fate != "", "export.fate=%q", f.Fate)
	add(f.MaxTokens != 0, "export.max_tokens=%d", f.MaxTokens)
	add(f.Truncated, "export.truncated=%v", true)
	add(f.Evals, "export.evals=%v", true)
	add(f.TestShare != 0, "export.test_share=%v", f.TestShare)
	add(from > 0, "export.from_version=%d", from)
	add(to >= 0, "export.to_version=%d", to)
	return sets
}

// quoted are texts as TOML lists them.
func quoted(list []string) string {
	texts := make([]string, len(list))
	for i, s := range list {
		texts[i] = fmt.Sprintf("%q", s)
	}
	return strings.Join(texts, ", ")
}

// checkFanout refuses what the stages that look at a run cannot do.
func (f flags) checkFanout(cfg *stages.Config) error {
	if f.Stage == trainer.Shadow && cfg.Shadow.Name == "" {
		return fmt.Errorf("a shadow trainer has a name, by which its folder and its curves are found: --shadow NAME")
	}
	return nil
}

// fanOut looks at a run of this machine: at its topics where its broker answers, and else at what its files hold.
func fanOut(ctx context.Context, f flags, cfg *stages.Config) error {
	if _, err := os.Stat(cfg.RunDir()); err != nil {
		return fmt.Errorf("run %s has not begun here: %w; --run and --config name the run", cfg.Run.Name, err)
	}
	stage, err := stages.Find(f.Stage)
	if err != nil {
		return err
	}
	embedded := cfg.Brokers[0] == stages.Embedded
	addr := ""
	if embedded {
		if addr, err = broker.Running(brokerDir(cfg)); err != nil {
			return err
		}
	}
	live := func(ctx context.Context, brokers []string) error {
		own := *cfg
		own.Brokers = brokers
		return runOne(ctx, f, &own, stage)
	}
	switch {
	case f.Stage == export.Name && !cfg.Export.Follow:
		return withFiles(ctx, f, cfg, func(a *stages.App) error { return a.ExportFiles(ctx, os.Stdout, os.Stderr) })
	case !embedded:
		return live(ctx, cfg.Brokers)
	case addr != "":
		return live(ctx, []string{addr})
	case f.Stage == board.Name:
		return withFiles(ctx, f, cfg, func(a *stages.App) error { return a.BoardFiles(ctx, os.Stdout) })
	case f.Stage == trainer.Shadow:
		return withBroker(ctx, f, cfg, func(ctx context.Context, brokers []string) error { // it trains on what was recorded
			if err := live(ctx, brokers); err != nil {
				return err
			}
			return withApp(ctx, f, cfg, brokers, f.Stage, logger(cfg, slog.LevelWarn), nil, func(ctx context.Context, a *stages.App) error {
				return a.WriteFiles(ctx) // no sink runs that would
			})
		})
	}
	return fmt.Errorf("--follow: run %s does not run here at the moment; without --follow its files are exported", cfg.Run.Name)
}

// withFiles runs work with an app that asks no broker.
func withFiles(ctx context.Context, f flags, cfg *stages.Config, work func(*stages.App) error) (err error) {
	app, err := stages.NewApp(cfg, []string{""}, f.Stage, logger(cfg, slog.LevelWarn))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.Close()) }()
	return work(app)
}
