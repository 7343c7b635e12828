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

	"github.com/alecthomas/kong"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/ui"
)

const description = `prl trains language models with reinforcement learning: every hop is a Kafka topic, every stage can be killed at any time, every rollout can be asked with SQL.

Stages: all (everything here, with an embedded broker), broker, emitter, envserver, inference, scorer, packer, trainer, eval, sink, cleanup, ui, setup, audit, replay.

  prl-stage --stage all --config configs/demo.toml
  prl-stage --stage envserver --env wordle
  prl-stage --stage envserver --env wordle --play    lets you play it here, without a broker
  prl-stage --stage envserver --env wordle --try 20 --url http://localhost:8000    lets a model play it, behind any OpenAI-compatible server
  prl-stage --stage envserver --env wordle --serve http://127.0.0.1:8000    offers it to clients of OpenEnv, or with zmq:// to those of verifiers
  prl-stage --stage trainer
  prl-stage --stage inference --backend vllm --url http://localhost:8100    gives a vLLM server the weights and asks it
  prl-stage --stage eval --env wordle --policy latest    measures one policy version now
  prl-stage --stage setup      makes the topics of a run and ends, for stages that may not (deploy/kafka/acls.csv)
  prl-stage --stage replay --run demo --topic traces     looks at what a run has recorded under other settings
  prl-stage --stage ui --run demo    the page of a run: live while it runs, from its files afterwards
  prl-stage --stage audit      holds what a run has left behind to what must always hold; exits with 1 if it does not

Settings come from --config, then from variables PRL__SECTION__KEY, then from --set, each over the ones before.`

type flags struct {
	Stage     string   `required:"" help:"Stage to run." placeholder:"NAME"`
	Config    string   `help:"TOML file with the settings; default for all, audit, replay and evals by hand: those the run was last started with." type:"existingfile" placeholder:"FILE"`
	Set       []string `help:"One setting over those of the file, e.g. run.max_steps=10." placeholder:"KEY=VALUE" sep:"none"`
	Run       string   `help:"Name of the run (run.name)." placeholder:"NAME"`
	From      string   `help:"Begin the run with a policy version of another one (--stage all, setup)." placeholder:"RUN@VERSION"`
	Brokers   []string `help:"Bootstrap addresses of Kafka, or: embedded." placeholder:"HOST:PORT"`
	Env       []string `help:"Environment that --stage envserver serves (may be repeated), or that --stage eval measures by hand; python:MODULE:CLASS for a class in Python." placeholder:"NAME"`
	Backend   string   `help:"What samples (inference.backend): native, vllm, sglang or openai." placeholder:"NAME"`
	URL       []string `help:"Root of a server of the backend (inference.urls; may be repeated), or the server that --try asks." placeholder:"URL" sep:"none"`
	Instance  string   `help:"Name of this process that survives restarts; default: host name and the first free number." placeholder:"NAME"`
	Leave     bool     `help:"Give the partitions up for good at the end (scaling down), instead of keeping them for a restart."`
	Fresh     bool     `help:"Throw away what an earlier run of this name left (embedded broker only)."`
	Telemetry *string  `help:"Address of /metrics, /healthz and /readyz; empty for none." placeholder:"HOST:PORT"`
	LogLevel  string   `help:"debug, info, warn or error." enum:"debug,info,warn,error,default" default:"default"`
	Child     bool     `hidden:"" help:"The broker ends with the process that started it."`

	Trainer trainerFlags `embed:""`
	Eval    evalFlags    `embed:""`
	Replay  replayFlags  `embed:""`
	Try     tryFlags     `embed:""`
	Serve   serveFlags   `embed:""`
}

func main() {
	var f flags
	kong.Parse(&f, kong.Name("prl-stage"), kong.Description(description), kong.UsageOnError())
	if err := run(f); err != nil {
		fmt.Fprintln(os.Stderr, "prl-stage:", err)
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
	err := errors.Join(f.checkTry(), f.checkServe())
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
	if f.Env, err = named(f.Env, cfg); err != nil {
		return err
	}
	if f.Fresh && f.Stage != "all" {
		return fmt.Errorf("--fresh is for --stage all; here choose another --run")
	}
	if err := errors.Join(f.checkEval(), f.checkReplay(), f.checkRanks(cfg)); err != nil {
		return err
	}
	if f.From != "" && f.Stage != "all" && f.Stage != stages.SetupName {
		return fmt.Errorf("--from is for --stage all, and for --stage setup of a distributed run")
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
	sets := append(slices.Clip(f.Set), f.Trainer.sets()...)
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
	if f.Telemetry != nil {
		sets = append(sets, fmt.Sprintf("telemetry=%q", *f.Telemetry))
	}
	if err := pipeline.LoadConfig(f.Config, os.Environ(), sets, cfg); err != nil {
		return nil, err
	}
	return cfg, nil
}

func logger(f flags, usual slog.Level) *slog.Logger {
	level := usual
	if f.LogLevel != "default" {
		if err := level.UnmarshalText([]byte(f.LogLevel)); err != nil {
			level = usual
		}
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// brokerDir holds the data of the run's embedded broker.
func brokerDir(cfg *stages.Config) string { return filepath.Join(cfg.RunDir(), "broker") }

func serveBroker(ctx context.Context, f flags, cfg *stages.Config) error {
	ready := func(string) {}
	if f.Child {
		ctx = broker.WithParent(context.WithoutCancel(ctx))
		ready = broker.AnnounceReady
	}
	return broker.Serve(ctx, brokerDir(cfg), cfg.Broker, logger(f, slog.LevelInfo), ready)
}

func runAll(ctx context.Context, f flags, cfg *stages.Config) error {
	log := logger(f, slog.LevelWarn)
	instance := f.Instance
	if instance == "" {
		instance = "all"
	}
	origin, err := parseOrigin(f, cfg)
	if err != nil {
		return err
	}
	work := func(ctx context.Context, brokers []string) error {
		return withApp(ctx, f, cfg, brokers, instance, log, nil, func(ctx context.Context, a *stages.App) error {
			if err := begin(ctx, f, cfg, a, origin); err != nil {
				return err
			}
			return a.RunAll(ctx, os.Stdout)
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
		app, err := stages.NewApp(cfg, brokers, stages.AuditName, logger(f, slog.LevelWarn))
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, app.Close()) }()
		report, err := app.Audit(ctx)
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
	log := logger(f, slog.LevelInfo)
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
	log = log.With("instance", instance)
	return withApp(ctx, f, cfg, cfg.Brokers, instance, log, []stages.Stage{stage}, func(ctx context.Context, a *stages.App) error {
		runner, err := stage.New(a, stage)
		if err != nil {
			return err
		}
		log.Info("stage runs", "stage", stage.Name, "run", cfg.Run.Name, "brokers", cfg.Brokers)
		return runner.Run(ctx)
	})
}

// setUp makes or checks the topics of a run and does nothing else.
func setUp(ctx context.Context, f flags, cfg *stages.Config) error {
	cfg.Telemetry = ""
	origin, err := parseOrigin(f, cfg)
	if err != nil {
		return err
	}
	return withApp(ctx, f, cfg, cfg.Brokers, stages.SetupName, logger(f, slog.LevelInfo), nil, func(ctx context.Context, a *stages.App) error {
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
		err := pipeline.ServeTelemetry(ctx, cfg.Telemetry, app.Registry, app.Runtime.Health, log)
		if err != nil {
			cancel(err)
		}
		served <- err
	}()
	err = work(ctx, app)
	cancel(nil)
	return errors.Join(err, <-served)
}
