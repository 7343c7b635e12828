package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/broker"
	"github.com/prl-project/prl/stages/eval"
)

// evalFlags are those of --stage eval by hand.
type evalFlags struct {
	Suite       string   `help:"Section [evals.<name>] with the settings of the eval." placeholder:"NAME" group:"An eval by hand (--stage eval --env NAME):" for:"eval replay"`
	Policy      string   `help:"What is measured: latest, the number of a policy version, or the name of a section [frozen.<name>]." default:"latest" group:"An eval by hand (--stage eval --env NAME):" for:"eval replay"`
	Examples    *int     `help:"Held-out tasks that are played." placeholder:"N" group:"An eval by hand (--stage eval --env NAME):" for:"eval"`
	K           *int     `help:"Rollouts of each." placeholder:"N" group:"An eval by hand (--stage eval --env NAME):" for:"eval replay"`
	Temperature *float64 `help:"Of sampling; 0 is greedy." placeholder:"T" group:"An eval by hand (--stage eval --env NAME):" for:"eval replay envserver"`
	Resume      string   `help:"Go on with an eval by hand: its id, or last. Only what is missing or failed is played." placeholder:"ID" group:"An eval by hand (--stage eval --env NAME):" for:"eval replay"`
}

// byHand reports whether an eval is to be run by hand, rather than the stage of a distributed run.
func (f flags) byHand() bool { return f.Stage == "eval" && (len(f.Env) > 0 || f.Eval.Suite != "") }

// checkEval refuses flags of an eval by hand where none is run, or where they do not apply.
func (f flags) checkEval() error {
	e := f.Eval
	switch {
	case (f.byHand() || f.regenerates()) && len(f.Env) > 1:
		return fmt.Errorf("--stage %s measures one environment at a time, --env names %d", f.Stage, len(f.Env))
	case f.regenerates() && e.Examples != nil:
		return fmt.Errorf("--examples: regenerate plays every recorded task that is selected; choose fewer with --to-version, --to-offset or --to-time")
	case f.byHand() || f.regenerates():
		return nil
	case e.Suite != "" || e.Policy != "latest" || e.Examples != nil || e.K != nil || e.Temperature != nil && !f.plays() || e.Resume != "":
		return fmt.Errorf("--suite, --policy, --examples, --k, --temperature and --resume are for an eval by hand: --stage eval with --env or --suite")
	case len(f.Env) > 0 && f.Stage != "envserver":
		return fmt.Errorf("--env is for --stage envserver, and for an eval by hand (--stage eval); the sections [envs.<name>] of the configuration are for all others")
	}
	return nil
}

// evalByHand runs one eval of a run that has begun. The embedded broker's run goes on in another process or stands still,
// and is then served here for the eval alone; beside other brokers its servers play, wherever they and its folder are.
func evalByHand(ctx context.Context, f flags, cfg *stages.Config) error {
	h := stages.EvalByHand{
		Suite: f.Eval.Suite, Policy: f.Eval.Policy, Examples: f.Eval.Examples, K: f.Eval.K, Temperature: f.Eval.Temperature,
		Resume: f.Eval.Resume,
	}
	if len(f.Env) > 0 {
		h.Env = f.Env[0]
	}
	log := logger(cfg, slog.LevelWarn)
	work := func(ctx context.Context, brokers []string, instance string) (err error) {
		app, err := stages.NewApp(cfg, brokers, instance, log)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, app.Close()) }()
		return app.RunEvalByHand(ctx, stdout(), h)
	}
	if cfg.Brokers[0] != stages.Embedded {
		return work(ctx, cfg.Brokers, eval.ByHandName)
	}
	if _, err := os.Stat(cfg.RunDir()); err != nil {
		return fmt.Errorf("run %s has not begun here: %w; --run and --config name the run", cfg.Run.Name, err)
	}
	addr, err := broker.Running(brokerDir(cfg))
	if err != nil {
		return err
	}
	h.Alone = addr == ""
	release, err := lockEval(cfg, h.Alone)
	if err != nil {
		return err
	}
	if h.Alone {
		err := withBroker(ctx, f, cfg, func(ctx context.Context, brokers []string) error { return work(ctx, brokers, "all") })
		return errors.Join(err, release())
	}
	if err := release(); err != nil {
		return err
	}
	fmt.Printf("Run %s goes on at the moment: its own servers play.\n", cfg.Run.Name)
	return whileServed(ctx, brokerDir(cfg), func(ctx context.Context) error { return work(ctx, []string{addr}, eval.ByHandName) })
}

// lockEval refuses an eval beside one that serves, for itself alone, a run which stands still: the broker of that one can be
// seen as that of a run which goes on, but nobody would play.
func lockEval(cfg *stages.Config, alone bool) (release func() error, err error) {
	how := syscall.LOCK_SH
	if alone {
		how = syscall.LOCK_EX
	}
	f, err := os.OpenFile(filepath.Join(cfg.RunDir(), "eval.lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("look whether an eval by hand goes on: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), how|syscall.LOCK_NB); err == nil {
		return f.Close, nil
	} else if !errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errors.Join(fmt.Errorf("look whether an eval by hand goes on: lock %s: %w", f.Name(), err), f.Close())
	}
	return nil, errors.Join(fmt.Errorf("an eval by hand of run %s goes on at the moment, in a process that serves nothing else: wait for its end", cfg.Run.Name), f.Close())
}

// whileServed runs work until it returns, or the broker on dir, which belongs to another process, is gone.
func whileServed(ctx context.Context, dir string, work func(context.Context) error) error {
	working, stop := context.WithCancel(ctx)
	watched := make(chan error, 1)
	go func() {
		defer stop()
		watched <- awaitEnd(working, dir)
	}()
	err := work(working)
	stop()
	return errors.Join(err, <-watched)
}

// awaitEnd returns when ctx ends, or the broker on dir is gone, which it says.
func awaitEnd(ctx context.Context, dir string) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(500 * time.Millisecond):
		}
		addr, err := broker.Running(dir)
		if err != nil {
			return err
		}
		if addr == "" {
			fmt.Fprintln(stdout(), "The run has ended or was stopped, and its servers with it.")
			return nil
		}
	}
}
