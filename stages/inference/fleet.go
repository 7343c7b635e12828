package inference

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
)

// runsPath is the path under which the interface of each run is.
const runsPath = "/runs/"

// RunPath is the path of a run's own interface, behind the root of a server.
func RunPath(run string) string { return runsPath + url.PathEscape(run) }

// A Fleet serves the policies of several runs in one process, on one address: the same guarantees as a Server's for each of
// them, which is one of its own. They share the decoder's slots and the model's time, by tokens and in proportion to their
// shares (package fair), and the memory of versions: of those beyond the newest of each run the least recently used goes,
// whichever run's it is.
type Fleet struct {
	cfg    Config
	log    *slog.Logger
	engine *engine
	stock  *stock

	listening chan struct{} // closed once addr stands
	addr      net.Addr

	mu   sync.Mutex
	runs map[string]*Server // that are served, by the run's name
}

// NewFleet makes a fleet with the native backend. It does no I/O: Run does.
func NewFleet(cfg Config, log *slog.Logger) (*Fleet, error) {
	switch err := cfg.Validate(); {
	case err != nil:
		return nil, err
	case !cfg.Native():
		return nil, fmt.Errorf("inference.backend = %q: only the native backend serves several runs", cfg.Backend)
	}
	return &Fleet{cfg: cfg, log: log, engine: newEngine(cfg), stock: newStock(cfg.Versions - 1), listening: make(chan struct{}), runs: map[string]*Server{}}, nil
}

// New makes the server of a run with a share above 0. It answers from its Run on, at the fleet's address, and is gone when
// that has ended. Listen, Slots, CacheMiB, StepTokens and Versions of cfg mean nothing to it.
func (f *Fleet) New(rt *pipeline.Runtime, cfg Config, frozen map[string]FrozenConfig, share float64) (*Server, error) {
	cfg.Listen = ""
	cfg, err := cfg.forRun(rt.Run)
	if err != nil {
		return nil, err
	}
	b := &tenant{f.engine.tenant(cfg.MaxModelLen, share)}
	s, err := NewServer(rt, cfg, frozen, b)
	if err != nil {
		return nil, err
	}
	s.policies.join(f.stock)
	s.enterFleet = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.runs[rt.Run.Name] = s
	}
	s.leaveFleet = func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.runs[rt.Run.Name] == s {
			delete(f.runs, rt.Run.Name)
		}
		s.policies.leave()
		b.leave()
	}
	return s, nil
}

// SetShare changes the run's share from now on.
func (s *Server) SetShare(share float64) {
	if t, ok := s.backend.(*tenant); ok {
		t.mu.Lock()
		t.share = share
		t.mu.Unlock()
	}
}

// A tenant is the backend of one run of a fleet.
type tenant struct{ *native }

// Run implements Backend: the engine runs for all.
func (t *tenant) Run(ctx context.Context) error {
	<-ctx.Done()
	t.leave()
	return nil
}

// leave takes the run out of the engine: what is left of it fails, and nothing of it is loaded any more.
func (t *tenant) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.refused = errStopping
	for _, l := range t.lanes {
		l.users = slices.DeleteFunc(l.users, func(n *native) bool { return n == t.native })
		l.lines.drop(func(s *sequence) bool {
			mine := s.served.of == t.native
			if mine {
				s.fail(errStopping)
			}
			return mine
		})
		l.lines.leave(t.native)
	}
	t.probes.drop(func(p *probing) bool {
		mine := p.model.of == t.native
		if mine {
			p.end(nil, errStopping)
		}
		return mine
	})
	t.probes.leave(t.native)
	t.signal()
}

// Listening is closed when Addr is known.
func (f *Fleet) Listening() <-chan struct{} { return f.listening }

// Addr is the address of the HTTP server, once Listening is closed; nil where there is none.
func (f *Fleet) Addr() net.Addr { return f.addr }

// Run serves until ctx ends, by when the servers of the runs have ended.
func (f *Fleet) Run(ctx context.Context) error {
	var hs *http.Server
	var l net.Listener
	if f.cfg.Listen != "" {
		var err error
		if l, err = net.Listen("tcp", f.cfg.Listen); err != nil {
			return fmt.Errorf("serve inference: %w (inference.listen chooses another address)", err)
		}
		f.addr = l.Addr()
		f.log.Info("inference serves", "addr", "http://"+l.Addr().String())
		hs = httpServer(f.handler(), f.cfg)
	}
	close(f.listening)
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return f.engine.Run(ctx) })
	if hs != nil {
		g.Go(func() error {
			if err := hs.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve inference: %w", err)
			}
			return nil
		})
		g.Go(func() error {
			<-ctx.Done()
			last, cancel := context.WithTimeout(context.Background(), time.Second) // replies are only written out
			defer cancel()
			if hs.Shutdown(last) != nil {
				return hs.Close()
			}
			return nil
		})
	}
	return g.Wait()
}

// handler sends requests to the run that their path names, /runs/<run>/, or, at the root, to the one whose policy they name as
// their model.
func (f *Fleet) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc(runsPath+"{run}/", func(w http.ResponseWriter, r *http.Request) {
		name := r.PathValue("run")
		if s := f.run(name); s != nil {
			http.StripPrefix(runsPath+name, s.inner).ServeHTTP(w, r)
			return
		}
		f.refuse(w, f.absent(name))
	})
	mux.HandleFunc("GET "+pathModels, f.handleModels)
	mux.HandleFunc("POST /v1/", f.handleNamed)
	mux.HandleFunc("POST "+pathGenerate, f.handleNamed)
	for _, path := range []string{"/health", "/ping"} {
		mux.HandleFunc(path, f.handleHealth)
	}
	mux.HandleFunc("GET /version", handleVersion)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		f.refuse(w, refuse(http.StatusNotFound, CodeInvalid, "no endpoint %s %s for all runs: each has its own under %s<run>/", r.Method, r.URL.Path, runsPath))
	})
	return mux
}

// run is the server of a run; nil where it is not served.
func (f *Fleet) run(name string) *Server {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.runs[name]
}

// authorized are the names of the runs whose token a request has.
func (f *Fleet) authorized(r *http.Request) (names []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(f.runs)) {
		if f.runs[name].authorize(r) == nil {
			names = append(names, name)
		}
	}
	return names
}

// absent is the error of a run that is not served. It may come, so the request is worth another try.
func (f *Fleet) absent(name string) error {
	return refuse(http.StatusServiceUnavailable, CodeStopping, "run %q is not served here at the moment", name)
}

// handleNamed serves what names a run as its model.
func (f *Fleet) handleNamed(w http.ResponseWriter, r *http.Request) {
	open := f.authorized(r)
	if len(open) == 0 {
		f.refuse(w, refuse(http.StatusUnauthorized, CodeUnauthorized, "send a run's token: Authorization: Bearer <token>"))
		return
	}
	body, err := readBody(w, r)
	var asked struct {
		Model string `json:"model"`
	}
	if err == nil {
		err = decodeBody(body, &asked)
	}
	if err == nil && !slices.Contains(open, asked.Model) {
		err = refuse(http.StatusNotFound, CodeNoModel, "model %q is not served here: name a run (%s), or ask at %s<run>%s", asked.Model, strings.Join(open, ", "), runsPath, r.URL.Path)
	}
	if err != nil {
		f.refuse(w, err)
		return
	}
	s := f.run(asked.Model)
	if s == nil {
		f.refuse(w, f.absent(asked.Model))
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	s.inner.ServeHTTP(w, r)
}

// handleModels lists the policies of the runs whose token the request has, and that serve one already.
func (f *Fleet) handleModels(w http.ResponseWriter, r *http.Request) {
	open := f.authorized(r)
	if len(open) == 0 {
		f.refuse(w, refuse(http.StatusUnauthorized, CodeUnauthorized, "send a run's token: Authorization: Bearer <token>"))
		return
	}
	list := modelList{Object: "list", Data: []ModelCard{}}
	for _, name := range open {
		s := f.run(name)
		if s == nil || !s.serves() {
			continue
		}
		cards, err := s.Models(r.Context())
		if err != nil {
			continue
		}
		for _, c := range cards {
			if c.ID == name { // its frozen ones are asked for at its own path
				list.Data = append(list.Data, c)
			}
		}
	}
	writeJSON(w, http.StatusOK, list)
}

// handleHealth is 200 while a policy of some run is served.
func (f *Fleet) handleHealth(w http.ResponseWriter, _ *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.runs {
		if s.serves() {
			return
		}
	}
	w.WriteHeader(http.StatusServiceUnavailable)
}

func (f *Fleet) refuse(w http.ResponseWriter, err error) {
	status, out := errorOut(err)
	if status == http.StatusServiceUnavailable {
		w.Header().Set("Retry-After", "1")
	}
	writeJSON(w, status, out)
}
