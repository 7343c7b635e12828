// Command prl-stage runs one stage of prl, or all of them.
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/logs"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/export"
	"github.com/prl-project/prl/stages/top"
	"github.com/prl-project/prl/stages/ui"
)

type flags struct {
	Stage     string   `help:"Stage to run." placeholder:"NAME" for:"*"`
	Config    string   `help:"TOML file with the settings; default for all, audit, replay and evals by hand: those the run was last started with." type:"existingfile" placeholder:"FILE" for:"*"`
	Set       []string `help:"One setting over those of the file, e.g. run.max_steps=10." placeholder:"KEY=VALUE" sep:"none" for:"*"`
	Runs      []string `name:"run" help:"Name of the run (run.name); repeated, --stage envserver or inference serves several." placeholder:"NAME" sep:"none" for:"*"`
	Run       string   `kong:"-"` // the one of --run
	From      string   `help:"Begin the run with a policy version of another one (--stage all, setup)." placeholder:"RUN@VERSION" for:"all setup"`
	Brokers   []string `help:"Bootstrap addresses of Kafka, or: embedded." placeholder:"HOST:PORT" for:"*"`
	Env       []string `help:"Environment that --stage envserver serves (may be repeated), or that --stage eval measures by hand, or whose rollouts --stage export takes; python:MODULE:CLASS for a class in Python." placeholder:"NAME" for:"envserver eval replay export"`
	Backend   string   `help:"What samples (inference.backend): native, vllm, sglang or openai." placeholder:"NAME" for:"all inference envserver eval"`
	URL       []string `help:"Root of a server of the backend (inference.urls; may be repeated), or the server that --try asks." placeholder:"URL" sep:"none" for:"all inference envserver"`
	Instance  string   `help:"Name of this process that survives restarts; default: host name and the first free number." placeholder:"NAME" for:"flow all"`
	Leave     bool     `help:"Give the partitions up for good at the end (scaling down), instead of keeping them for a restart." for:"flow"`
	Fresh     bool     `help:"Throw away what an earlier run of this name left (embedded broker only)." for:"all"`
	Telemetry *string  `help:"Address of /metrics, /healthz and /readyz; empty for none." placeholder:"HOST:PORT" for:"*"`
	Help      help     `short:"h" help:"Show this; with --stage NAME all about that stage." for:"*"`
	ProbeEnv  bool     `hidden:"" help:"Open the environment on the input, make a task and say so (a child of --dry-run)." for:"envserver"`
	Child     bool     `hidden:"" help:"The broker ends with the process that started it." for:"broker"`

	Log     logFlags     `embed:""`
	Ask     askFlags     `embed:""`
	Trainer trainerFlags `embed:""`
	Eval    evalFlags    `embed:""`
	Replay  replayFlags  `embed:""`
	Fanout  fanoutFlags  `embed:""`
	Try     tryFlags     `embed:""`
	Serve   serveFlags   `embed:""`
	Top     topFlags     `embed:""`
}

func main() {
	var f flags
	parse(&f, os.Args[1:])
	if f.Ask.any() {
		f.Ask.answer()
		return
	}
	if err := run(f); err != nil {
		fmt.Fprintln(os.Stderr, "prl-stage:", logs.Plain(err.Error()))
		os.Exit(1)
	}
}

func run(f flags) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	go func() { // the first signal stops in order, the second at once
		<-ctx.Done()
		stop()
	}()
	if f.ProbeEnv {
		return stages.ProbeEnv(os.Stdin, os.Stdout)
	}
	err := errors.Join(f.takeRuns(), f.checkTry(), f.checkServe(), f.checkTop())
	if err != nil {
		return err
	}
	if f.Config, err = f.recorded(); err != nil {
		return err
	}
	cfg, err := configure(f)
	if err != nil {
		return err
	}
	if f.fleet(cfg) {
		stage, err := stages.Find(f.Stage)
		if err != nil {
			return err
		}
		if f.Replay.DryRun {
			return dryRunFleet(ctx, f, stage, os.Stdout)
		}
		return runFleet(ctx, f, stage)
	}
	if f.Env, err = named(f.Env, cfg); err != nil {
		return err
	}
	if f.Fresh && f.Stage != "all" {
		return fmt.Errorf("--fresh is for --stage all; here choose another --run")
	}
	if err := errors.Join(f.checkEval(), f.checkReplay(), f.checkRanks(cfg), f.checkFanout(cfg)); err != nil {
		return err
	}
	if f.From != "" && f.Stage != "all" && f.Stage != stages.SetupName {
		return fmt.Errorf("--from is for --stage all, and for --stage setup of a distributed run")
	}
	if f.Replay.DryRun && f.Stage != stages.ReplayName {
		return dryRun(ctx, f, cfg, os.Stdout)
	}
	if f.Stage == "broker" {
		return serveBroker(ctx, f, cfg)
	}
	if f.Stage == "all" {
		return runAll(ctx, f, cfg)
	}
	if f.Stage == stages.AuditName {
		return auditRun(ctx, f, cfg)
	}
	if f.byHand() {
		return evalByHand(ctx, f, cfg)
	}
	if f.Stage == stages.ReplayName {
		return replayRun(ctx, f, cfg)
	}
	if f.plays() {
		return playByHand(ctx, f, cfg)
	}
	if f.Serve.Serve != "" {
		return serveEnv(ctx, f, cfg, os.Stdout)
	}
	if f.Stage == ui.Name && cfg.Brokers[0] == stages.Embedded {
		return showRun(ctx, f, cfg)
	}
	if f.fansOut() && (cfg.Brokers[0] == stages.Embedded || f.Stage == export.Name) {
		return fanOut(ctx, f, cfg)
	}
	if f.Stage == top.Name {
		return topRun(ctx, f, cfg)
	}
	stage, err := stages.Find(f.Stage)
	if err != nil && f.Stage != stages.SetupName {
		return err
	}
	if cfg.Brokers[0] == stages.Embedded {
		return fmt.Errorf("--stage %s needs a broker it shares with the others: start `prl-stage --stage broker` and give --brokers localhost:9092", f.Stage)
	}
	if f.Stage == stages.SetupName {
		return setUp(ctx, f, cfg)
	}
	return runOne(ctx, f, cfg, stage)
}

// named gives the names of the environments that --env gives, and says which it has made.
func named(given []string, cfg *stages.Config) ([]string, error) {
	names, err := cfg.NameEnvs(given)
	for i := range names {
		if names[i] != given[i] {
			fmt.Fprintf(os.Stderr, "prl-stage: the environment %s is called %s\n", given[i], names[i])
		}
	}
	return names, err
}

func configure(f flags) (*stages.Config, error) { return configureOver(f, stages.DefaultConfig()) }

// configureOver puts what the flags say over the settings of cfg.
func configureOver(f flags, cfg *stages.Config) (*stages.Config, error) {
	if err := pipeline.LoadConfig(f.Config, os.Environ(), f.sets(), cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

// sets are the settings that the flags are.
func (f flags) sets() []string {
	sets := append(slices.Clip(f.Set), f.Trainer.sets()...)
	sets = append(sets, f.Fanout.sets(f.Stage, f.Env, f.Replay.FromVersion, f.Replay.ToVersion)...)
	if f.Run != "" {
		sets = append(sets, fmt.Sprintf("run.name=%q", f.Run))
	}
	if f.Backend != "" {
		sets = append(sets, fmt.Sprintf("inference.backend=%q", f.Backend))
	}
	urls := f.URL
	if f.plays() {
		urls = nil // it is asked for text, and serves no run
	}
	for key, list := range map[string][]string{"brokers": f.Brokers, "inference.urls": urls} {
		var quoted []string
		for _, s := range list {
			quoted = append(quoted, fmt.Sprintf("%q", s))
		}
		if len(list) > 0 {
			sets = append(sets, key+"=["+strings.Join(quoted, ",")+"]")
		}
	}
	sets = append(sets, f.Log.sets()...)
	if f.Telemetry != nil {
		sets = append(sets, fmt.Sprintf("telemetry=%q", *f.Telemetry))
	}
	return sets
}

// brokerDir holds the data of the run's embedded broker.
func brokerDir(cfg *stages.Config) string { return filepath.Join(cfg.RunDir(), "broker") }

func serveBroker(ctx context.Context, f flags, cfg *stages.Config) error {
	ready := func(string) {}
	if f.Child {
		ctx = broker.WithParent(context.WithoutCancel(ctx))
		ready = broker.AnnounceReady
	}
	return broker.Serve(ctx, brokerDir(cfg), cfg.Broker, logger(cfg, slog.LevelInfo), ready)
}

func runAll(ctx context.Context, f flags, cfg *stages.Config) error {
	instance := f.Instance
	if instance == "" {
		instance = "all"
	}
	origin, err := parseOrigin(f, cfg)
	if err != nil {
		return err
	}
	work := func(ctx context.Context, brokers []string) error {
		log := stageLogger(cfg, slog.LevelWarn, allName, instance) // --fresh has removed the folder by now
		return withApp(ctx, f, cfg, brokers, instance, log, nil, func(ctx context.Context, a *stages.App) error {
			if err := begin(ctx, f, cfg, a, origin); err != nil {
				return err
			}
			return a.RunAll(ctx, stdout())
		})
	}
	if cfg.Brokers[0] == stages.Embedded {
		return withBroker(ctx, f, cfg, work)
	}
	if f.Fresh {
		return fmt.Errorf("--fresh deletes the data of an embedded broker; on %v choose another --run instead", cfg.Brokers)
	}
	return work(ctx, cfg.Brokers)
}

// auditRun reads what a run has left behind and tells what is wrong with it. It makes no topic.
func auditRun(ctx context.Context, f flags, cfg *stages.Config) error {
	if _, err := os.Stat(cfg.RunDir()); err != nil {
		return fmt.Errorf("audit run %s: its weights and Parquet files are not here: %w", cfg.Run.Name, err)
	}
	work := func(ctx context.Context, brokers []string) (err error) {
		app, err := stages.NewApp(cfg, brokers, stages.AuditName, logger(cfg, slog.LevelWarn))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, app.Close()) }()
		report, err := app.AuditShown(ctx, stderr())
		if err != nil {
			return err
		}
		fmt.Print(report)
		if n := report.Total(); n > 0 {
			return fmt.Errorf("run %s has %d violations", cfg.Run.Name, n)
		}
		return nil
	}
	if cfg.Brokers[0] == stages.Embedded {
		return withBroker(ctx, f, cfg, work)
	}
	return work(ctx, cfg.Brokers)
}

// withBroker runs work against an embedded broker in a child process, and ends it if the broker does.
func withBroker(ctx context.Context, f flags, cfg *stages.Config, work func(ctx context.Context, brokers []string) error) error {
	if f.Fresh {
		if err := broker.Remove(ctx, brokerDir(cfg), cfg.RunDir()); err != nil {
			return err
		}
	}
	child, err := broker.StartChild(ctx, brokerDir(cfg), "--stage", "broker", "--child", "--run", cfg.Run.Name,
		"--set", fmt.Sprintf("dir=%q", cfg.Dir), "--set", `broker.listen="localhost:0"`)
	if err != nil {
		return err
	}
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	worked := make(chan struct{})
	go func() {
		select {
		case <-child.Done():
			cancel(fmt.Errorf("the embedded broker has ended; its last words are in %s; the same command goes on from here", child.Log))
		case <-worked:
		}
	}()
	err = work(working, []string{child.Addr})
	close(worked)
	if cause := context.Cause(working); cause != nil && ctx.Err() == nil {
		return errors.Join(cause, err)
	}
	return errors.Join(err, child.Stop())
}

func runOne(ctx context.Context, f flags, cfg *stages.Config, stage stages.Stage) error {
	log := logger(cfg, slog.LevelInfo)
	instance := f.Instance
	if instance == "" {
		name, release, err := pipeline.ClaimInstance(filepath.Join(cfg.RunDir(), "locks"), stage.Name)
		if err != nil {
			return err
		}
		defer func() {
			if err := release(); err != nil {
				log.Warn("instance lock not released", "error", err)
			}
		}()
		instance = name
	}
	log = stageLogger(cfg, slog.LevelInfo, stage.Name, instance)
	return withApp(ctx, f, cfg, cfg.Brokers, instance, log, []stages.Stage{stage}, func(ctx context.Context, a *stages.App) error {
		runner, err := a.Make(stage)
		if err != nil {
			return err
		}
		a.Runtime.Log.Info("stage runs", "stage", stage.Name, "brokers", cfg.Brokers)
		defer a.ShowStage(stage, stderr())()
		return a.RunStage(ctx, stage, runner)
	})
}

// setUp makes or checks the topics of a run and does nothing else.
func setUp(ctx context.Context, f flags, cfg *stages.Config) error {
	cfg.Telemetry = ""
	origin, err := parseOrigin(f, cfg)
	if err != nil {
		return err
	}
	return withApp(ctx, f, cfg, cfg.Brokers, stages.SetupName, logger(cfg, slog.LevelInfo), nil, func(ctx context.Context, a *stages.App) error {
		if err := begin(ctx, f, cfg, a, origin); err != nil {
			return err
		}
		fmt.Printf("The topics of run %s are there and right.\n", cfg.Run.Name)
		return nil
	})
}

// withApp runs work with an app, the topics of its stages (nil for all) set up and its telemetry served.
func withApp(ctx context.Context, f flags, cfg *stages.Config, brokers []string, instance string, log *slog.Logger, run []stages.Stage, work func(context.Context, *stages.App) error) (err error) {
	app, err := stages.NewApp(cfg, brokers, instance, log)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, app.Close()) }()
	app.Serve, app.Runtime.Leave = f.Env, f.Leave
	if err := app.SetUp(ctx, run...); err != nil {
		if ctx.Err() != nil && len(run) > 0 {
			return nil // a stage that is stopped before it began
		}
		app.RefusedAtStart(ctx, err, run...)
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	served := make(chan error, 1)
	go func() {
		if cfg.Telemetry == "" {
			served <- nil
			return
		}
		err := pipeline.ServeTelemetry(ctx, cfg.Telemetry, cfg.TelemetryPprof, app.Registry, app.Runtime.Health, log)
		if err != nil {
			cancel(err)
		}
		served <- err
	}()
	err = work(ctx, app)
	cancel(nil)
	return errors.Join(err, <-served)
}
