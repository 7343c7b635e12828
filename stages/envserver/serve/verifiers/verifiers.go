// Package verifiers offers an environment as a verifiers environment server, so that the EnvClient of verifiers 0.4.0, 0.2.1 or
// 0.1.14 can use it as one of its own: the client says which task is played, and by which model behind which URL; the
// rollout is played here, and its trace goes back.
//
// What holds: a rollout's trace has what the model was shown and said, in order; with a client of type "train" also the very
// tokens that it sampled, with their log-probabilities. A model that fails is an error of the trace, never a reward of zero.
// Rollouts that run and that wait are bounded, and end with their connection. A variable of this process goes only to
// the server that it is listed for, see [Models].
//
// The wires of 0.4.0 and 0.2.1 cannot be told apart by a health check, so Config.Wire says which of them is spoken; that of
// 0.1.14 always is, too. It is ZeroMQ's ROUTER and msgpack; there is no token in it and no TLS.
package verifiers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"

	"github.com/prl-project/prl/stages/envserver/bridge/zmtp"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/serve"
	"github.com/prl-project/prl/stages/envserver/try"
	"github.com/prl-project/prl/stages/inference/render"
)

// Wires that can be asked for.
const (
	Wire040 = "0.4.0"
	Wire021 = "0.2.1"
)

// Config bounds the server.
type Config struct {
	// Wire is Wire040 or Wire021.
	Wire string
	// Rollouts is how many run at once; others wait.
	Rollouts int
	// Limits of a rollout and of its model calls.
	Limits try.Limits
	// MaxTokens of a reply where the client does not say; 0 leaves it to the model's server.
	MaxTokens int
	// Models are those that may be asked.
	Models Models
	// Renderer makes tokens of conversations for clients of type "train"; nil refuses these.
	Renderer render.Renderer
}

const (
	longest     = 64 << 20 // of a message, in bytes
	mostPeers   = 1024
	mostWaiting = 1 << 16
)

// Server serves one environment.
type Server struct {
	serve.Served
	cfg     Config
	log     *slog.Logger
	info    env.Info
	http    *http.Client
	running chan struct{} // a place for each rollout that runs
	waiting chan struct{} // and for each that runs or waits
}

// New begins an episode, to see that the environment can be played.
func New(ctx context.Context, of serve.Served, cfg Config, log *slog.Logger) (*Server, error) {
	switch {
	case cfg.Wire != Wire040 && cfg.Wire != Wire021:
		return nil, fmt.Errorf("wire %q: want %s or %s", cfg.Wire, Wire040, Wire021)
	case cfg.Rollouts < 1 || cfg.Rollouts > mostWaiting:
		return nil, fmt.Errorf("%d rollouts at once: want 1 to %d", cfg.Rollouts, mostWaiting)
	case cfg.Limits.Rollout <= 0:
		return nil, errors.New("a rollout needs time: envs.<name>.timeout")
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns, transport.MaxIdleConnsPerHost = cfg.Rollouts, cfg.Rollouts
	s := &Server{
		Served: of, cfg: cfg, log: log, info: of.Env.Info(), running: make(chan struct{}, cfg.Rollouts), waiting: make(chan struct{}, mostWaiting),
		// A key is sent where it is meant to go, and not where that place sends us.
		http: &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }},
	}
	zero := int64(0)
	c, err := of.Choose(serve.Pick{Index: &zero, Seed: &zero})
	if err != nil {
		return nil, err
	}
	episode, err := of.Begin(ctx, c, nil)
	if err != nil {
		return nil, err
	}
	defer episode.Close()
	if agents := episode.Agents(); len(agents) > 0 {
		return nil, fmt.Errorf("%s is played by several agents (%q): verifiers' clients get one; OpenEnv's get them all (--serve http://…)", s.info.Name, agents)
	}
	return s, nil
}

// Run serves until ctx ends, and cancels all rollouts then.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	ctx, stop := context.WithCancel(ctx)
	defer s.http.CloseIdleConnections()
	var peers sync.WaitGroup
	defer peers.Wait()
	defer stop()
	context.AfterFunc(ctx, func() { _ = listener.Close() }) // Accept returns
	places := make(chan struct{}, mostPeers)
	for {
		conn, err := listener.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			var passing net.Error
			if errors.As(err, &passing) && passing.Timeout() {
				continue
			}
			return fmt.Errorf("serve %s: %w", s.info.Name, err)
		}
		select {
		case places <- struct{}{}:
		default:
			_ = conn.Close() // there are enough
			continue
		}
		peers.Go(func() {
			defer func() { <-places }()
			c, err := zmtp.Open(ctx, conn, zmtp.Router, longest)
			if err != nil {
				s.log.Warn("a connection is refused", "from", conn.RemoteAddr().String(), "error", err)
				return
			}
			s.serve(ctx, c)
		})
	}
}

// place waits until a rollout may run.
func (s *Server) place(ctx context.Context) (done func(), err error) {
	select {
	case s.waiting <- struct{}{}:
	default:
		return nil, fmt.Errorf("%d rollouts wait already", mostWaiting)
	}
	select {
	case s.running <- struct{}{}:
		return func() { <-s.running; <-s.waiting }, nil
	case <-ctx.Done():
		<-s.waiting
		return nil, context.Cause(ctx)
	}
}

// task is which episode a client means, and the environment's own task where the client has it.
type task struct {
	chosen serve.Chosen
	own    json.RawMessage
	data   map[string]any // as the client sent it
}

// taskOf reads the client's task: "task", an object, is the environment's own; else "split" and "index" say which, or number.
// Rollouts of one task have one seed, unless the client says otherwise.
func (s *Server) taskOf(data map[string]any, number *int64) (task, error) {
	t := task{data: data}
	pick := serve.Pick{Index: number}
	if v, ok := data["split"].(string); ok {
		pick.Split = &v
	}
	if v, ok := data["index"].(int64); ok {
		pick.Index = &v
	}
	if v, ok := data["seed"].(int64); ok {
		pick.Seed = &v
	}
	if v, ok := data["task"].(map[string]any); ok {
		t.own = encoded(v)
		none := int64(0)
		if pick.Index == nil || *pick.Index >= int64(s.info.Train) {
			pick.Index = &none // it is not looked up
		}
	}
	if pick.Index == nil {
		return t, errors.New(`the task has none of "idx", "index" and "task", by which this server knows which one is meant`)
	}
	if pick.Seed == nil {
		pick.Seed = pick.Index
	}
	var err error
	t.chosen, err = s.Choose(pick)
	return t, err
}
