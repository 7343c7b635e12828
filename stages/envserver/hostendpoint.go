package envserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// A hostEndpoint is where hosts (env.Host) ask for what the policy says: one server of HTTP on this machine, in which every
// rollout has a path that nobody can guess, http://127.0.0.1:PORT/PATH/v1. What it takes and refuses is that of the native
// inference server, and of a desk.
type hostEndpoint struct {
	server   *http.Server
	listener net.Listener
	nobody   *inference.API // answers where there is no rollout

	mu    sync.Mutex
	desks map[string]*desk
	log   *slog.Logger
}

// listenHosts opens an endpoint; serve serves it.
func listenHosts(log *slog.Logger) (*hostEndpoint, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("serve the environments that play rollouts themselves: %w", err)
	}
	e := &hostEndpoint{listener: l, desks: map[string]*desk{}, log: log, nobody: inference.NewAPI(nil, "", log)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{rollout}/v1/models", e.to((*inference.API).Models))
	mux.HandleFunc("GET /{rollout}/v1/models/{name...}", e.to((*inference.API).Model))
	mux.HandleFunc("POST /{rollout}/v1/chat/completions", e.to((*inference.API).Chat))
	mux.HandleFunc("POST /{rollout}/inference/v1/generate", e.to((*inference.API).Generate))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		e.nobody.Refuse(w, r, &inference.Error{Status: http.StatusNotFound, Code: inference.CodeInvalid,
			Message: "no endpoint here: a rollout has /v1/chat/completions, /v1/models and /inference/v1/generate"})
	})
	e.server = &http.Server{
		Handler: mux, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
	}
	return e, nil
}

// serve serves until ctx ends.
func (e *hostEndpoint) serve(ctx context.Context) error {
	defer context.AfterFunc(ctx, func() { _ = e.server.Close() })()
	if err := e.server.Serve(e.listener); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve the environments that play rollouts themselves: %w", err)
	}
	return nil
}

// to hands a request to the API of its rollout.
func (e *hostEndpoint) to(serve func(*inference.API, http.ResponseWriter, *http.Request)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		e.mu.Lock()
		d := e.desks[r.PathValue("rollout")]
		e.mu.Unlock()
		if d == nil {
			e.nobody.Refuse(w, r, errOver)
			return
		}
		select {
		case d.slot <- struct{}{}:
		default:
			d.api.Refuse(w, r, &inference.Error{Status: http.StatusServiceUnavailable, Code: inference.CodeOverloaded,
				Message: fmt.Sprintf("the rollout makes %d requests at once already: try again later", maxHostRequests)})
			return
		}
		defer func() { <-d.slot }()
		defer func() {
			if v := recover(); v != nil {
				d.mu.Lock()
				d.broke(&failure{errorInternal, &env.PanicError{Value: v, Stack: string(debug.Stack())}})
				d.mu.Unlock()
				d.api.Refuse(w, r, errOver)
			}
		}()
		serve(d.api, w, r)
	}
}

// open gives a desk its path and returns the base URL, which ends in /v1. shut takes the path away.
func (e *hostEndpoint) open(d *desk) (base string, shut func()) {
	path := rand.Text()
	d.api = inference.NewAPI(d, d.name, e.log)
	d.api.Refused = d.refuse
	e.mu.Lock()
	defer e.mu.Unlock()
	e.desks[path] = d
	return fmt.Sprintf("http://%s/%s/v1", e.listener.Addr(), path), func() {
		e.mu.Lock()
		delete(e.desks, path)
		e.mu.Unlock()
		d.close()
	}
}
