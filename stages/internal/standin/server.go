package standin

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/internal/lm"
)

// Server is an Engine behind the HTTP of one make, at one address over all its lives.
type Server struct {
	*Engine
	URL string

	t   testing.TB
	mux *http.ServeMux

	mu    sync.Mutex
	hung  bool
	dead  bool // its engine
	http  *http.Server
	ended chan struct{}
}

func newServer(t testing.TB, base *lm.Model, routes func(*Server)) *Server {
	t.Helper()
	s := &Server{Engine: NewEngine(base), t: t, mux: http.NewServeMux()}
	routes(s)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s.URL = "http://" + l.Addr().String()
	s.serve(l)
	t.Cleanup(func() {
		s.Kill()
		if n := s.Counts().Unpaused; n > 0 {
			t.Errorf("the stand-in at %s: weights or labels were changed %d times without a pause", s.URL, n)
		}
	})
	return s
}

func (s *Server) serve(l net.Listener) {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	ended := make(chan struct{})
	s.http, s.ended = h, ended
	go func() {
		defer close(ended)
		if err := h.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			s.t.Errorf("the stand-in at %s: %v", s.URL, err)
		}
	}()
}

// ServeHTTP answers, unless the server hangs.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	hung, dead := s.hung, s.dead
	s.mu.Unlock()
	if dead {
		s.set(func() { s.counts.Failed++ })
		status := http.StatusInternalServerError
		if r.URL.Path == "/health" {
			status = http.StatusServiceUnavailable
		}
		reply(w, status, object{"error": object{"message": "EngineDeadError", "type": "InternalServerError", "code": status}})
		return
	}
	if hung {
		io.Copy(io.Discard, r.Body) // the end of a connection is seen only behind it
		s.set(func() { s.counts.Hung++ })
		<-r.Context().Done()
		return
	}
	s.mux.ServeHTTP(w, r)
}

// Hang makes the server take requests and not answer them, those that run included, or ends that.
func (s *Server) Hang(yes bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hung = yes
	if yes {
		s.Gate(0)
	} else {
		s.Gate(-1)
	}
}

// KillEngine leaves of the server what speaks HTTP: everything fails, and its health, until it is killed and started.
func (s *Server) KillEngine() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dead = true
}

// Kill ends the server as a SIGKILL would: connections break off.
func (s *Server) Kill() {
	s.mu.Lock()
	h, ended := s.http, s.ended
	s.http, s.dead = nil, false
	s.mu.Unlock()
	if h == nil {
		return
	}
	h.Close()
	s.restart()
	<-ended
}

// Start starts the server that was killed, with the model it was first started with.
func (s *Server) Start() {
	s.t.Helper()
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", s.URL[len("http://"):])
	if err != nil {
		s.t.Fatal(err)
	}
	s.serve(l)
}

// reply writes JSON.
func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	json.NewEncoder(w).Encode(v) // whoever asked may be gone
}

// read decodes the body of a request into v.
func read(w http.ResponseWriter, r *http.Request, v any) bool {
	if err := json.NewDecoder(r.Body).Decode(v); err != nil {
		reply(w, http.StatusBadRequest, map[string]any{"error": map[string]any{"message": err.Error(), "type": "Bad Request", "code": 400}})
		return false
	}
	return true
}

type object = map[string]any
