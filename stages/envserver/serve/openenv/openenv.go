// Package openenv offers an environment as an OpenEnv server (the wire of openenv 0.10.0), so that any of its clients can use
// it: GenericEnvClient, MCPToolClient, and what is made with them, such as the environment_factory classes of TRL.
//
// What holds: a session has one episode at a time and answers its requests in their order. Sessions are bounded; one that nobody
// uses, and one whose client is gone, is closed, and a call of the environment that runs meanwhile is told to end. A request that is wrong
// costs an error message, with the codes of the original, and the session lives on.
//
// HTTP /reset, /step and /mcp without a session are stateless, as in the original: each begins an episode of its own.
// https://huggingface.co/docs/openenv has the protocol.
package openenv

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/serve"
)

// Config bounds the server.
type Config struct {
	// Sessions is how many there may be at once, at least 1.
	Sessions int
	// Idle is how long a session may go without a request.
	Idle time.Duration
	// Token is what clients send as bearer token; empty asks for none.
	Token string
}

// Server serves one environment.
type Server struct {
	serve.Served
	cfg      Config
	log      *slog.Logger
	info     env.Info
	tools    []env.Tool // of an episode of the first task
	sessions *sessions
}

// New begins an episode, for what it tells of the environment. An error if the environment cannot be played.
func New(ctx context.Context, of serve.Served, cfg Config, log *slog.Logger) (*Server, error) {
	if cfg.Sessions < 1 || cfg.Idle <= 0 {
		return nil, fmt.Errorf("%d sessions, idle for %v: want at least one, and some time", cfg.Sessions, cfg.Idle)
	}
	s := &Server{Served: of, cfg: cfg, log: log, info: of.Env.Info(), sessions: newSessions(cfg.Sessions)}
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
	s.tools = episode.Tools()
	return s, nil
}

// shutdownTime is how long requests that run may take to end after ctx has.
const shutdownTime = 5 * time.Second

// Run serves until ctx ends, and closes all sessions then.
func (s *Server) Run(ctx context.Context, listener net.Listener) error {
	reaped := make(chan struct{})
	working, stop := context.WithCancel(ctx)
	go func() {
		defer close(reaped)
		s.sessions.reap(working, s.cfg.Idle)
	}()
	h := &http.Server{
		Handler: s.handler(), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return working },
	}
	served := make(chan error, 1)
	go func() { served <- h.Serve(listener) }()
	var err error
	select {
	case err = <-served:
	case <-ctx.Done():
	}
	stop()
	s.sessions.closeAll()
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if h.Shutdown(last) != nil {
		_ = h.Close() // what still runs is cut off
	}
	<-reaped
	if err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve %s: %w", s.info.Name, err)
	}
	return nil
}

func (s *Server) handler() http.Handler {
	mux := http.NewServeMux()
	for path, reply := range map[string]any{
		"/health": map[string]string{"status": "healthy"}, "/metadata": s.metadata(), "/schema": s.schema(), "/state": state{},
		"/list_environments": []string{s.info.Name},
	} {
		mux.HandleFunc("GET "+path, func(w http.ResponseWriter, _ *http.Request) { answer(w, http.StatusOK, reply) })
	}
	mux.HandleFunc("POST /reset", s.endpoint(s.reset))
	mux.HandleFunc("POST /step", s.endpoint(s.step))
	mux.HandleFunc("POST /mcp", s.mcp)
	mux.HandleFunc("GET /mcp", s.mcpSocket)
	mux.HandleFunc("GET /ws", s.socket)
	s.taskAPI(mux)
	// A page in a browser of this machine may not use it: it is refused by its Origin.
	return http.NewCrossOriginProtection().Handler(s.authorized(mux))
}

// authorized asks for the token, except where only health is asked for.
func (s *Server) authorized(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if s.cfg.Token != "" && r.URL.Path != "/health" && subtle.ConstantTimeCompare([]byte(token), []byte(s.cfg.Token)) != 1 {
			answer(w, http.StatusUnauthorized, detail("send the server's token: Authorization: Bearer <token>"))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// answer sends a reply as JSON.
func answer(w http.ResponseWriter, status int, reply any) {
	data, err := json.Marshal(reply)
	if err != nil {
		status, data = http.StatusInternalServerError, []byte(`{"detail":"the reply cannot be encoded"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client may be gone
}

// detail is an error as the original's framework has it.
func detail(what any) map[string]any { return map[string]any{"detail": what} }
