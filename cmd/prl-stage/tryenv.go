package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"time"

	"golang.org/x/term"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/try"
	"github.com/prl-project/prl/stages/top"
)

// tryFlags are those of an environment that is played by hand: by a person or by a model behind a URL.
type tryFlags struct {
	Play      bool   `help:"Play the environment in this terminal; /help there says how." group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Try       *int   `help:"Let the model at --url play so many rollouts, and print each with its reward, then a summary. It is any server with OpenAI's chat completions; a URL without a path gets /v1. Settings: envs.NAME.temperature, max_tokens, max_rollout_tokens and timeout, envserver.env_timeout, request_timeout and retries." placeholder:"N" group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Task      int    `help:"Index of the first task; the next ones follow." default:"0" placeholder:"N" group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Split     string `help:"Tasks to train on, or those held out: train or eval." enum:"train,eval" default:"train" group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Seed      *int64 `help:"Seed of the first episode (0), the next ones follow; with --try also of the model's sampling, which has none by default." placeholder:"N" group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Model     string `help:"Name of the model for --try; not needed where the server has one." placeholder:"NAME" group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	TokenFile string `help:"File with the bearer token of the server for --try, or that clients of --serve must send." placeholder:"FILE" group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	TokenEnv  string `help:"Environment variable with it." placeholder:"NAME" group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Cleartext bool   `help:"Send the token without TLS to another machine." group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Parallel  *int   `help:"Rollouts of --try at once (8)." placeholder:"N" group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Alt       bool   `help:"With --try: show a model that reads only text the alt texts of images." group:"One environment by hand, without a broker (--stage envserver --env NAME):" for:"envserver"`
	JSON      bool   `name:"json" help:"With --try: a JSON object per rollout, a line each, on the output; all else beside it. With --dry-run: one JSON object. With --stage top: one now and then." for:"*"`
}

// plays reports whether an environment is to be played by hand, rather than served.
func (f flags) plays() bool { return f.Try.Play || f.Try.Try != nil }

// checkTry refuses flags of playing by hand where nothing is, or where they do not apply.
func (f flags) checkTry() error {
	t := f.Try
	const ask = "--url, --model, --token-file, --token-env, --cleartext, --temperature, --parallel, --alt and --json"
	asks := t.Model != "" || t.TokenFile != "" || t.TokenEnv != "" || t.Cleartext || t.Parallel != nil || t.Alt || t.JSON && !f.Replay.DryRun && f.Stage != top.Name
	switch {
	case !f.plays():
		if f.Serve.Serve != "" { // which has a token, too
			asks = t.Model != "" || t.Cleartext || t.Parallel != nil || t.Alt || t.JSON && !f.Replay.DryRun
		}
		if asks || t.Task != 0 || t.Split != "" && t.Split != string(env.Train) || t.Seed != nil {
			return fmt.Errorf("--task, --split, --seed, --model, --token-file, --token-env, --cleartext, --parallel, --alt and --json are for --play and --try N")
		}
	case t.Play && t.Try != nil:
		return fmt.Errorf("--play and --try: leave one out")
	case f.Stage != "envserver":
		return fmt.Errorf("--play and --try are for --stage envserver")
	case len(f.Env) != 1:
		return fmt.Errorf("--play and --try are of one environment: name it with --env")
	case f.Backend != "":
		return fmt.Errorf("--backend is for --stage inference; --try asks any server with OpenAI's chat completions at --url")
	case t.Play && (asks || len(f.URL) > 0 || f.Eval.Temperature != nil):
		return fmt.Errorf("%s are for --try N", ask)
	case !t.Play && len(f.URL) > 1:
		return fmt.Errorf("--try asks one server, --url names %d", len(f.URL))
	}
	return nil
}

// playByHand plays an environment with the options of its section, here and now.
func playByHand(ctx context.Context, f flags, cfg *stages.Config) error {
	name, t := f.Env[0], f.Try
	e, err := cfg.OpenEnv(name)
	if err != nil {
		return err
	}
	if c, ok := e.(io.Closer); ok {
		defer c.Close()
	}
	tasks := try.Tasks{Split: env.Split(t.Split), First: t.Task}
	if t.Seed != nil {
		tasks.Seed = *t.Seed
	}
	envTimeout := time.Duration(cfg.EnvServer.EnvTimeout)
	if t.Play {
		typed := term.IsTerminal(int(os.Stdin.Fd()))
		return try.Play{Env: e, Tasks: tasks, EnvTimeout: envTimeout, Echo: !typed}.Run(ctx, os.Stdin, os.Stdout)
	}
	section, ok := cfg.Envs[name]
	if !ok {
		section = emitter.DefaultEnvConfig()
	}
	r := &try.Run{
		Env: e, Tasks: tasks, Rollouts: *t.Try, Parallel: 8, Alt: t.Alt, JSON: t.JSON, Log: logger(cfg, slog.LevelWarn),
		Server:   try.Server{Model: t.Model, TokenFile: t.TokenFile, TokenEnv: t.TokenEnv, Cleartext: t.Cleartext},
		Sampling: try.Sampling{Temperature: section.Temperature, MaxTokens: section.MaxTokens, MaxRolloutTokens: section.MaxRolloutTokens, Seed: t.Seed},
		Limits: try.Limits{
			Rollout: time.Duration(section.Timeout), Env: envTimeout, Request: time.Duration(cfg.EnvServer.RequestTimeout), Retries: cfg.EnvServer.Retries,
		},
	}
	if t.Parallel != nil {
		r.Parallel = *t.Parallel
	}
	if len(f.URL) > 0 {
		r.Server.URL = f.URL[0]
	}
	if f.Eval.Temperature != nil {
		r.Sampling.Temperature = *f.Eval.Temperature
	}
	return r.Do(ctx, stdout(), stderr())
}
