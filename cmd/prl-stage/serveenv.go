package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"time"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/serve"
	"github.com/prl-project/prl/stages/envserver/serve/openenv"
	"github.com/prl-project/prl/stages/envserver/serve/verifiers"
	"github.com/prl-project/prl/stages/envserver/try"
	"github.com/prl-project/prl/stages/inference/render"
)

// serveFlags are those of an environment that is offered to programs of other frameworks.
type serveFlags struct {
	Serve     string         `help:"Offer the environment to programs of other frameworks: http://HOST:PORT to clients of OpenEnv, zmq://HOST:PORT to those of verifiers 0.4.0 and 0.1.14, zmq://HOST:PORT?wire=0.2.1 to those of 0.2.1. Port 0 takes a free one." placeholder:"URL" group:"One environment for other programs, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Sessions  *int           `help:"Sessions, or rollouts, at once (256)." placeholder:"N" group:"One environment for other programs, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Idle      *time.Duration `help:"Close a session of OpenEnv that has been without a request for so long (30m)." placeholder:"DURATION" group:"One environment for other programs, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Models    []string       `help:"Server of a model that clients of verifiers may have asked (may be repeated), and the variable of this process's environment that they may have sent there as its key. Default: any server, no variable; to be given where other machines reach the port." placeholder:"URL[=VARIABLE]" sep:"none" group:"One environment for other programs, without a broker (--stage envserver --env NAME):" for:"envserver"`
	Tokenizer string         `help:"Folder with the model's tokenizer.json, for clients of verifiers that train." type:"existingdir" placeholder:"FOLDER" group:"One environment for other programs, without a broker (--stage envserver --env NAME):" for:"envserver"`
}

// usualSessions is how many sessions or rollouts there are at once.
const usualSessions = 256

// checkServe refuses flags of serving where nothing is served, or where they do not apply.
func (f flags) checkServe() error {
	s := f.Serve
	switch {
	case s.Serve == "" && (s.Sessions != nil || s.Idle != nil || len(s.Models) > 0 || s.Tokenizer != ""):
		return fmt.Errorf("--sessions, --idle, --models and --tokenizer are for --serve URL")
	case s.Serve == "":
		return nil
	case f.plays():
		return fmt.Errorf("--serve, --play and --try: leave all but one out")
	case f.Stage != "envserver" || len(f.Env) != 1:
		return fmt.Errorf("--serve is of one environment: --stage envserver --env NAME --serve %s", s.Serve)
	case len(f.URL) > 0 || f.Backend != "":
		return fmt.Errorf("--url and --backend: with --serve there is no model here, the clients have theirs")
	}
	return nil
}

// served is an environment on its way to be served, and where.
type served struct {
	serve.Served
	flags    flags
	cfg      *stages.Config
	at       *url.URL
	sessions int
	log      *slog.Logger
	out      io.Writer
}

// serveEnv offers an environment with the options of its section until ctx ends.
func serveEnv(ctx context.Context, f flags, cfg *stages.Config, out io.Writer) error {
	at, err := url.Parse(f.Serve.Serve)
	if err != nil || at.Port() == "" || at.Path != "" && at.Path != "/" || at.User != nil || at.Fragment != "" {
		return fmt.Errorf("--serve %q: want one such as http://127.0.0.1:8000 or zmq://127.0.0.1:5000", f.Serve.Serve)
	}
	s := served{flags: f, cfg: cfg, at: at, sessions: usualSessions, log: logger(cfg, slog.LevelWarn), out: out}
	if n := f.Serve.Sessions; n != nil {
		s.sessions = *n
	}
	run := served.openEnv
	switch at.Scheme {
	case "http":
	case "zmq", "tcp":
		run = served.verifiers
	default:
		return fmt.Errorf("--serve %q: want http:// for OpenEnv or zmq:// for verifiers", f.Serve.Serve)
	}
	e, err := cfg.OpenEnv(f.Env[0])
	if err != nil {
		return err
	}
	if c, ok := e.(io.Closer); ok {
		defer c.Close()
	}
	s.Served = serve.Served{Env: e, Limit: time.Duration(cfg.EnvServer.EnvTimeout)}
	return run(s, ctx)
}

// tasks says how many there are, for people.
func (s served) tasks() string {
	info := s.Env.Info()
	return fmt.Sprintf("%d tasks to train on, %d held out", info.Train, info.Eval)
}

func (s served) listen() (net.Listener, error) {
	listener, err := net.Listen("tcp", s.at.Host)
	if err != nil {
		return nil, fmt.Errorf("--serve %s: %w", s.flags.Serve.Serve, err)
	}
	return listener, nil
}

func (s served) openEnv(ctx context.Context) error {
	f := s.flags
	if s.at.RawQuery != "" || len(f.Serve.Models) > 0 || f.Serve.Tokenizer != "" {
		return errors.New("?wire, --models and --tokenizer are for clients of verifiers (--serve zmq://…)")
	}
	if f.Try.TokenFile != "" && f.Try.TokenEnv != "" {
		return errors.New("--token-file and --token-env: leave one out")
	}
	token, err := try.Server{TokenFile: f.Try.TokenFile, TokenEnv: f.Try.TokenEnv}.Token()
	if err != nil {
		return err
	}
	if !serve.Local(s.at.Hostname()) && token == "" {
		return fmt.Errorf("--serve %s can be reached from other machines: give the token that clients must send with --token-file or --token-env, or serve at 127.0.0.1", s.at)
	}
	limits := openenv.Config{Sessions: s.sessions, Idle: 30 * time.Minute, Token: token}
	if d := f.Serve.Idle; d != nil {
		limits.Idle = *d
	}
	server, err := openenv.New(ctx, s.Served, limits, s.log)
	if err != nil {
		return err
	}
	listener, err := s.listen()
	if err != nil {
		return err
	}
	base, headers := "http://"+listener.Addr().String(), ""
	if token != "" {
		headers = `, headers={"Authorization": "Bearer <token>"}`
	}
	info := s.Env.Info()
	fmt.Fprintf(s.out, "%s %s is an OpenEnv server at %s: %s, up to %d sessions.\n", info.Name, info.Version, base, s.tasks(), limits.Sessions)
	fmt.Fprintf(s.out, "From Python:  from openenv.core.generic_client import GenericEnvClient\n")
	fmt.Fprintf(s.out, "              env = GenericEnvClient(base_url=%q%s).sync(); print(env.reset(split=\"train\", index=0, seed=0))\n", base, headers)
	if _, ok := s.Env.(env.GroupScorer); ok {
		fmt.Fprintf(s.out, "In a run this environment compares the rollouts of a group; here each is scored by itself.\n")
	}
	return server.Run(ctx, listener)
}

func (s served) verifiers(ctx context.Context) error {
	f := s.flags
	switch {
	case f.Try.TokenFile != "" || f.Try.TokenEnv != "":
		return errors.New("--token-file and --token-env: clients of verifiers know no token; see --models")
	case f.Serve.Idle != nil:
		return errors.New("--idle is for sessions of OpenEnv (--serve http://…)")
	case !serve.Local(s.at.Hostname()) && len(f.Serve.Models) == 0:
		return fmt.Errorf("--serve %s can be reached from other machines, and verifiers' wire has no token: say with --models which servers of models "+
			"may be asked for whoever comes, or serve at 127.0.0.1", s.at)
	}
	section, ok := s.cfg.Envs[f.Env[0]]
	if !ok {
		section = emitter.DefaultEnvConfig()
	}
	limits := verifiers.Config{
		Wire: verifiers.Wire040, Rollouts: s.sessions, MaxTokens: section.MaxTokens, Models: verifiers.Models{Any: len(f.Serve.Models) == 0},
		Limits: try.Limits{Rollout: time.Duration(section.Timeout), Request: time.Duration(s.cfg.EnvServer.RequestTimeout), Retries: s.cfg.EnvServer.Retries},
	}
	for name, values := range s.at.Query() {
		if name != "wire" || len(values) != 1 {
			return fmt.Errorf("--serve %s: behind the question mark there may be wire=%s or wire=%s", s.at, verifiers.Wire040, verifiers.Wire021)
		}
		limits.Wire = values[0]
	}
	for _, entry := range f.Serve.Models {
		if err := limits.Models.Allow(entry); err != nil {
			return fmt.Errorf("--models %s: %w", entry, err)
		}
	}
	if folder := f.Serve.Tokenizer; folder != "" {
		text, err := os.ReadFile(filepath.Join(folder, "tokenizer.json"))
		if err == nil {
			limits.Renderer, err = render.New(s.cfg.Model.Renderer, text)
		}
		if err != nil {
			return fmt.Errorf("--tokenizer %s: %w", folder, err)
		}
	}
	server, err := verifiers.New(ctx, s.Served, limits, s.log)
	if err != nil {
		return err
	}
	listener, err := s.listen()
	if err != nil {
		return err
	}
	at := "tcp://" + listener.Addr().String()
	info := s.Env.Info()
	fmt.Fprintf(s.out, "%s %s is a verifiers environment server at %s (wire %s): %s, up to %d rollouts at once.\n", info.Name, info.Version, at, limits.Wire, s.tasks(), s.sessions)
	if limits.Wire == verifiers.Wire021 {
		fmt.Fprintf(s.out, "From Python:  from verifiers.v1.serve.client import EnvClient\n")
		fmt.Fprintf(s.out, "              trace = await EnvClient(%q).run_rollout(0, client, model, sampling)\n", at)
	} else {
		fmt.Fprintf(s.out, "From Python:  from verifiers.v1.serve.client import EnvClient\n")
		fmt.Fprintf(s.out, "              episode = await EnvClient(%q).run(client, model, sampling, task_data={\"idx\": 0})\n", at)
		if _, ok := s.Env.(env.GroupScorer); ok {
			fmt.Fprintf(s.out, "In a run this environment compares the rollouts of a group; over this wire each is scored by itself.\n")
		}
	}
	return server.Run(ctx, listener)
}
