package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/eval"
)

// evalFlags are those of --stage eval by hand.
type evalFlags struct {
	Suite       string   `help:"Section [evals.<name>] with the settings of the eval." placeholder:"NAME" group:"An eval by hand (--stage eval --env NAME):"`
	Policy      string   `help:"What is measured: latest, the number of a policy version, or the name of a section [frozen.<name>]." default:"latest" group:"An eval by hand (--stage eval --env NAME):"`
	Examples    *int     `help:"Held-out tasks that are played." placeholder:"N" group:"An eval by hand (--stage eval --env NAME):"`
	K           *int     `help:"Rollouts of each." placeholder:"N" group:"An eval by hand (--stage eval --env NAME):"`
	Temperature *float64 `help:"Of sampling; 0 is greedy." placeholder:"T" group:"An eval by hand (--stage eval --env NAME):"`
	Resume      string   `help:"Go on with an eval by hand: its id, or last. Only what is missing or failed is played." placeholder:"ID" group:"An eval by hand (--stage eval --env NAME):"`
	Serve       bool     `help:"Serve the policy and the environment in this process; without it, the run's own servers do. With the embedded broker of a run that has ended or was stopped, this is always so." group:"An eval by hand (--stage eval --env NAME):"`
}

// byHand reports whether an eval is to be run by hand, rather than the stage of a distributed run.
func (f flags) byHand() bool { return f.Stage == "eval" && (len(f.Env) > 0 || f.Eval.Suite != "") }

// checkEval refuses flags of an eval by hand where none is run.
func (f flags) checkEval() error {
	e := f.Eval
	switch {
	case f.byHand() && len(f.Env) > 1:
		return fmt.Errorf("--stage eval measures one environment at a time, --env names %d", len(f.Env))
	case f.byHand() || f.regenerates():
		return nil
	case e.Suite != "" || e.Policy != "latest" || e.Examples != nil || e.K != nil || e.Temperature != nil || e.Resume != "" || e.Serve:
		return fmt.Errorf("--suite, --policy, --examples, --k, --temperature, --resume and --serve are for an eval by hand: --stage eval with --env or --suite")
	case len(f.Env) > 0 && f.Stage != "envserver":
		return fmt.Errorf("--env is for --stage envserver, and for an eval by hand (--stage eval); the sections [envs.<name>] of the configuration are for all others")
	}
	return nil
}

// evalByHand runs one eval of a run that has begun.
func evalByHand(ctx context.Context, f flags, cfg *stages.Config) error {
	if _, err := os.Stat(cfg.RunDir()); err != nil {
		return fmt.Errorf("run %s has not begun here: %w; --run and --config name the run", cfg.Run.Name, err)
	}
	h := stages.EvalByHand{
		Suite: f.Eval.Suite, Policy: f.Eval.Policy, Examples: f.Eval.Examples, K: f.Eval.K, Temperature: f.Eval.Temperature,
		Resume: f.Eval.Resume, Serve: f.Eval.Serve,
	}
	if len(f.Env) > 0 {
		h.Env = f.Env[0]
	}
	log := logger(f, slog.LevelWarn)
	work := func(ctx context.Context, brokers []string, instance string) (err error) {
		app, err := stages.NewApp(cfg, brokers, instance, log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, app.Close()) }()
		app.Runtime.Leave = !h.Sink // others go on with the run
		return app.RunEvalByHand(ctx, os.Stdout, h)
	}
	brokers := cfg.Brokers
	if brokers[0] == stages.Embedded {
		addr, err := broker.Running(brokerDir(cfg))
		if err != nil {
			return err
		}
		if addr == "" {
			h.Serve, h.Sink = true, true
			return withBroker(ctx, f, cfg, func(ctx context.Context, brokers []string) error { return work(ctx, brokers, "all") })
		}
		if !h.Serve {
			fmt.Printf("Run %s goes on at the moment: its own servers play.\n", cfg.Run.Name)
		}
		brokers = []string{addr}
		var stop context.CancelFunc
		ctx, stop = whileServed(ctx, brokerDir(cfg))
		defer stop()
	}
	if !h.Serve {
		return work(ctx, brokers, eval.ByHandName)
	}
	// The environment server joins those of the run, under a name that nobody else has.
	name, release, err := pipeline.ClaimInstance(filepath.Join(cfg.RunDir(), "locks"), "envserver")
	if err != nil {
		return err
	}
	return errors.Join(work(ctx, brokers, name), release())
}

// whileServed ends with the broker on dir, which belongs to another process.
func whileServed(ctx context.Context, dir string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-time.After(500 * time.Millisecond):
			}
			if addr, err := broker.Running(dir); err == nil && addr == "" {
				fmt.Println("The run has ended, and its servers with it.")
				cancel()
			}
		}
	}()
	return ctx, cancel
}
