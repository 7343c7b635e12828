package inference

import (
	"encoding/json"
	"net/http"
	"runtime/debug"
)

// A distant backend samples elsewhere, and may lose all that do.
type distant interface {
	Alive() bool
}

func (s *Server) alive() bool {
	d, ok := s.backend.(distant)
	return !ok || d.Alive()
}

// handleHealth says with its status whether a policy is served, as those who spread requests over servers ask. It takes no
// token.
func (s *Server) handleHealth(w http.ResponseWriter, _ *http.Request) {
	s.mu.Lock()
	stopping := s.stopping
	s.mu.Unlock()
	if stopping || !s.serves() || !s.alive() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}

// handleVersion says which prl serves. It takes no token.
func handleVersion(w http.ResponseWriter, _ *http.Request) {
	version := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		version = "prl " + info.Main.Version
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]string{"version": version})
}
