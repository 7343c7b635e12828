package pipeline

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// Health knows which stages of a process do their work. A nil Health takes everything and says nothing.
type Health struct {
	mu    sync.Mutex
	ready map[string]bool
}

// Set says whether a stage does its work.
func (h *Health) Set(stage string, ready bool) {
	if h == nil {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.ready == nil {
		h.ready = map[string]bool{}
	}
	h.ready[stage] = ready
}

// Ready reports whether a stage does its work.
func (h *Health) Ready(stage string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.ready[stage]
}

// Working reports whether all stages do their work.
func (h *Health) Working() bool {
	_, all := h.snapshot()
	return all
}

func (h *Health) snapshot() (stages map[string]bool, all bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	stages, all = map[string]bool{}, len(h.ready) > 0 // before the stages are made there is nothing to be ready
	for s, ok := range h.ready {
		stages[s] = ok
		all = all && ok
	}
	return stages, all
}

// Values of the setting telemetry_pprof.
const (
	PprofOff   = "off"
	PprofLocal = "local" // for requests from this machine
	PprofAny   = "any"   // for whoever reaches the telemetry address
)

// ServeTelemetry answers /metrics, /healthz (the process lives) and /readyz (its stages have joined and work) on addr until ctx
// ends, and /debug/pprof/ for those whom profiles lets have them. Profiles show what is in memory: names of files, command
// lines, and who computes what.
func ServeTelemetry(ctx context.Context, addr, profiles string, reg prometheus.Gatherer, h *Health, log *slog.Logger) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return fmt.Errorf("serve metrics: %w (--telemetry chooses another address, empty for none)", err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(prometheus.Gatherers{reg, processMetrics()}, promhttp.HandlerOpts{
		ErrorHandling: promhttp.ContinueOnError, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn), // the others are still there
	}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		stages, all := h.snapshot()
		w.Header().Set("Content-Type", "application/json")
		if !all {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		if err := json.NewEncoder(w).Encode(stages); err != nil {
			log.Debug("readyz answer not sent", "error", err)
		}
	})
	serveProfiles(mux, profiles)
	srv := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	log.Info("metrics, healthz and readyz", "addr", "http://"+l.Addr().String())
	stop := context.AfterFunc(ctx, func() { _ = srv.Close() }) // its error would be the listener's, closed here
	defer stop()
	if err := srv.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}

// serveProfiles answers /debug/pprof/.
func serveProfiles(mux *http.ServeMux, profiles string) {
	if profiles == PprofOff {
		return
	}
	for path, handler := range map[string]http.HandlerFunc{"": pprof.Index, "profile": pprof.Profile, "trace": pprof.Trace, "symbol": pprof.Symbol, "cmdline": pprof.Cmdline} {
		if profiles == PprofLocal {
			handler = localOnly(handler)
		}
		mux.HandleFunc("GET /debug/pprof/"+path, handler)
	}
}

// localOnly answers requests of this machine. A page that somebody looks at here does not count: its requests name another host.
func localOnly(f http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if !loopback(r.RemoteAddr) || !loopback(r.Host) {
			http.Error(w, "profiles are for requests from this machine, to localhost (telemetry_pprof = \"local\")", http.StatusForbidden)
			return
		}
		f(w, r)
	}
}

// loopback reports whether an address, with or without a port, is this machine's own.
func loopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = strings.Trim(addr, "[]")
	}
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}
