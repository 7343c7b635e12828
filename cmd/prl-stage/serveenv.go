package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/serve"
	"github.com/prl-project/prl/stages/envserver/serve/openenv"
	"github.com/prl-project/prl/stages/envserver/try"
)

// serveFlags are those of an environment that is offered to programs of other frameworks.
type serveFlags struct {
	Serve    string         `help:"Offer the environment to programs of other frameworks: at http://HOST:PORT to clients of OpenEnv. Port 0 takes a free one." placeholder:"URL" group:"One environment for other programs, without a broker (--stage envserver --env NAME):"`
	Sessions *int           `help:"Sessions at once (256)." placeholder:"N" group:"One environment for other programs, without a broker (--stage envserver --env NAME):"`
	Idle     *time.Duration `help:"Close a session that has been without a request for so long (30m)." placeholder:"DURATION" group:"One environment for other programs, without a broker (--stage envserver --env NAME):"`
}

// checkServe refuses flags of serving where nothing is served, or where they do not apply.
func (f flags) checkServe() error {
	s, t := f.Serve, f.Try
	switch {
	case s.Serve == "" && (s.Sessions != nil || s.Idle != nil):
		return fmt.Errorf("--sessions and --idle are for --serve URL")
	case s.Serve == "":
		return nil
	case f.plays():
		return fmt.Errorf("--serve, --play and --try: leave all but one out")
	case f.Stage != "envserver" || len(f.Env) != 1:
		return fmt.Errorf("--serve is of one environment: --stage envserver --env NAME --serve %s", s.Serve)
	case len(f.URL) > 0 || f.Backend != "":
		return fmt.Errorf("--url and --backend: with --serve there is no model here, the clients have theirs")
	case t.TokenFile != "" && t.TokenEnv != "":
		return fmt.Errorf("--token-file and --token-env: leave one out")
	}
	return nil
}

// serveEnv offers an environment with the options of its section until ctx ends.
func serveEnv(ctx context.Context, f flags, cfg *stages.Config, out io.Writer) error {
	at, err := url.Parse(f.Serve.Serve)
	if err != nil || at.Scheme != "http" || at.Port() == "" || at.Path != "" && at.Path != "/" || at.RawQuery != "" || at.User != nil {
		return fmt.Errorf("--serve %q: want one such as http://127.0.0.1:8000", f.Serve.Serve)
	}
	token, err := try.Server{TokenFile: f.Try.TokenFile, TokenEnv: f.Try.TokenEnv}.Token()
	if err != nil {
		return err
	}
	if !serve.Local(at.Hostname()) && token == "" {
		return fmt.Errorf("--serve %s can be reached from other machines: give the token that clients must send with --token-file or --token-env, or serve at 127.0.0.1", f.Serve.Serve)
	}
	e, err := cfg.OpenEnv(f.Env[0])
	if err != nil {
		return err
	}
	if c, ok := e.(io.Closer); ok {
		defer c.Close()
	}
	limits := openenv.Config{Sessions: 256, Idle: 30 * time.Minute, Token: token}
	if n := f.Serve.Sessions; n != nil {
		limits.Sessions = *n
	}
	if d := f.Serve.Idle; d != nil {
		limits.Idle = *d
	}
	server, err := openenv.New(ctx, serve.Served{Env: e, Limit: time.Duration(cfg.EnvServer.EnvTimeout)}, limits, logger(f, slog.LevelWarn))
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", at.Host)
	if err != nil {
		return fmt.Errorf("--serve %s: %w", f.Serve.Serve, err)
	}
	base := "http://" + listener.Addr().String()
	headers := ""
	if token != "" {
		headers = `, headers={"Authorization": "Bearer <token>"}`
	}
	info := e.Info()
	fmt.Fprintf(out, "%s %s is an OpenEnv server at %s: %d tasks to train on, %d held out, up to %d sessions.\n", info.Name, info.Version, base, info.Train, info.Eval, limits.Sessions)
	fmt.Fprintf(out, "From Python:  from openenv.core.generic_client import GenericEnvClient\n")
	fmt.Fprintf(out, "              env = GenericEnvClient(base_url=%q%s).sync(); print(env.reset(split=\"train\", index=0, seed=0))\n", base, headers)
	if _, ok := e.(env.GroupScorer); ok {
		fmt.Fprintf(out, "In a run this environment compares the rollouts of a group; here each is scored by itself.\n")
	}
	return server.Run(ctx, listener)
}
