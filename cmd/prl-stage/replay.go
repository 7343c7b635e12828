package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/replay"
)

// replayFlags are those of --stage replay.
type replayFlags struct {
	Mode        string    `help:"What --stage replay does: recompute (score and pack again with these settings, and compare with what was trained), rescore (let the environments give the rewards anew), regenerate (give the recorded tasks of --env to --policy, with --suite, --k, --temperature and --resume as of an eval by hand) or train (from --from-version on the recomputed batches, as the run --into)." enum:"recompute,rescore,regenerate,train" default:"recompute" group:"replay" for:"replay"`
	Topic       string    `help:"What is read: traces; for recompute also samples, to pack what was scored; for rescore also eval_traces." default:"traces" placeholder:"NAME" group:"replay" for:"replay"`
	Source      string    `help:"Where from: topics, or parquet (the sink's files)." enum:"topics,parquet" default:"topics" group:"replay" for:"replay"`
	NewRewards  bool      `help:"Recompute with rewards that the environments give anew, as rescore does." group:"replay" for:"replay"`
	FromVersion int64     `help:"Recompute: from the first step on that this policy version made possible. Rescore, export: traces that began with it or a later one. Shadow: the version it begins with." default:"0" placeholder:"N" group:"replay" for:"replay shadow export"`
	ToVersion   int64     `help:"Recompute: to the step that made this version. Rescore, export: traces that began (ended, for export) with it or an earlier one." default:"-1" placeholder:"N" group:"replay" for:"replay export"`
	FromOffset  int64     `help:"From this offset on: of samples for recompute, of each partition of the topic for rescore." placeholder:"N" group:"replay" for:"replay"`
	ToOffset    int64     `help:"To below this offset." placeholder:"N" group:"replay" for:"replay"`
	FromTime    time.Time `help:"From this time on, of the same records, such as 2006-01-02T15:04:05Z." placeholder:"TIME" group:"replay" for:"replay"`
	ToTime      time.Time `help:"To before this time." placeholder:"TIME" group:"replay" for:"replay"`
	Into        string    `help:"Write what is made to the topics and Parquet files of a run of its own. Done again, it goes on where it stopped." placeholder:"RUN" group:"replay" for:"replay"`
	DryRun      bool      `help:"Print the settings with where they come from, check what the stage needs (brokers, topics, rights, folders, environments, model), and start, change and make nothing. Of a replay: say what would be read and written." for:"*"`
}

// regenerates reports whether recorded tasks are to be played again, which is an eval by hand.
func (f flags) regenerates() bool {
	return f.Stage == stages.ReplayName && f.Replay.Mode == stages.ReplayRegenerate
}

// checkReplay refuses flags of a replay where none is done.
func (f flags) checkReplay() error {
	none := replayFlags{Mode: stages.ReplayRecompute, Topic: pipeline.TopicTraces, Source: "topics", ToVersion: -1}
	none.DryRun = f.Replay.DryRun // every stage has that
	if f.fansOut() {
		none.FromVersion, none.ToVersion = f.Replay.FromVersion, f.Replay.ToVersion
	}
	if f.Stage != stages.ReplayName && f.Replay != none {
		return fmt.Errorf("--mode, --topic, --source, --new-rewards, --from-version and the like, and --into are for --stage replay")
	}
	if f.Replay.Into != "" && f.Replay.Into == f.Run {
		return fmt.Errorf("--into %s: the run that is read; what was recorded is never written to", f.Replay.Into)
	}
	return nil
}

// replayRun looks at a recorded run again. The settings of [run] are those the run began with, unless others are given.
func replayRun(ctx context.Context, f flags, cfg *stages.Config) error {
	recorded, err := cfg.Recorded()
	if err != nil {
		return fmt.Errorf("%w; --run and --config name the run", err)
	}
	base := stages.DefaultConfig()
	base.Run = recorded
	if cfg, err = configureOver(f, base); err != nil {
		return err
	}
	into := *cfg
	into.Run.Name, into.Sink.Dir = f.Replay.Into, ""
	if into.Run.Name == cfg.Run.Name {
		return fmt.Errorf("--into %s: the run that is read; what was recorded is never written to", into.Run.Name)
	}
	r := stages.Replay{
		Mode: f.Replay.Mode, NewRewards: f.Replay.NewRewards, Parquet: f.Replay.Source == "parquet", Topic: f.Replay.Topic, DryRun: f.Replay.DryRun, Bar: stderr(),
		Select: replay.Selection{
			FromOffset: f.Replay.FromOffset, ToOffset: f.Replay.ToOffset, From: f.Replay.FromTime, To: f.Replay.ToTime,
			FromVersion: f.Replay.FromVersion, ToVersion: f.Replay.ToVersion,
		},
	}
	if f.regenerates() {
		r.Eval = stages.EvalByHand{Suite: f.Eval.Suite, Policy: f.Eval.Policy, K: f.Eval.K, Temperature: f.Eval.Temperature, Resume: f.Eval.Resume}
		if len(f.Env) > 0 {
			r.Eval.Env = f.Env[0]
		}
	}
	return withReplayed(ctx, f, cfg, r.Parquet, func(ctx context.Context, a *stages.App) error {
		if f.Replay.Into == "" {
			return a.Replay(ctx, stdout(), r)
		}
		return withReplayed(ctx, f, &into, r.DryRun, func(ctx context.Context, b *stages.App) error {
			r.Into = b
			return a.Replay(ctx, stdout(), r)
		})
	})
}

// withReplayed runs work with the app of a run, and with its embedded broker unless none is needed: with the one that runs
// where the run goes on.
func withReplayed(ctx context.Context, f flags, cfg *stages.Config, alone bool, work func(context.Context, *stages.App) error) error {
	open := func(ctx context.Context, brokers []string) (err error) {
		app, err := stages.NewApp(cfg, brokers, stages.ReplayName, logger(cfg, slog.LevelWarn))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, app.Close()) }()
		return work(ctx, app)
	}
	if alone || cfg.Brokers[0] != stages.Embedded {
		return open(ctx, cfg.Brokers)
	}
	addr, err := broker.Running(brokerDir(cfg))
	if err != nil {
		return err
	}
	if addr != "" {
		return open(ctx, []string{addr})
	}
	return withBroker(ctx, f, cfg, open)
}
