package remote

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
)

// fleet is servers that are all to hold the same version.
type fleet struct {
	cfg     inference.RemoteConfig
	make    dialect
	fixed   bool // its model is not trained: no version, no labels
	log     *slog.Logger
	metrics *metrics
	servers []*server
	routes  *routes
	tell    func(alive bool) // is told whenever anything has changed, under the lock

	mu      sync.Mutex
	goal    *target // what all servers are to hold; nil before the first
	users   int     // requests that need it to stay (hold)
	labels  map[string]int64
	stopped bool
	changed chan struct{} // closed when anything above changes, or the state of a server
}

// conversations is how many are remembered: 100 bytes each.
const conversations = 1 << 17

func newFleet(cfg inference.RemoteConfig, urls []string, d dialect, fixed bool, log *slog.Logger, m *metrics) *fleet {
	f := &fleet{
		cfg: cfg, make: d, fixed: fixed, log: log, metrics: m, routes: newRoutes(conversations),
		tell:   func(bool) {},
		labels: map[string]int64{}, changed: make(chan struct{}),
	}
	t := newTransport()
	for _, u := range urls {
		base := strings.TrimRight(u, "/")
		f.servers = append(f.servers, &server{
			fleet: f, url: base, client: &client{base: base, token: cfg.Token.Reveal(), http: &http.Client{Transport: t}},
			why: errors.New("it has not been looked at"), doubt: make(chan struct{}, 1),
		})
	}
	return f
}

// run leads the servers until ctx ends, and then fails what is left.
func (f *fleet) run(ctx context.Context) {
	var wg sync.WaitGroup
	for _, s := range f.servers {
		wg.Go(func() { s.lead(ctx) })
	}
	wg.Wait()
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stopped = true
	f.broadcast()
}

// broadcast wakes everyone who waits. The lock is held.
func (f *fleet) broadcast() {
	close(f.changed)
	f.changed = make(chan struct{})
	f.tell(f.alive())
}

// alive says whether a server can answer, or could when it was last asked to and is being given the goal. The lock is held.
func (f *fleet) alive() bool {
	return slices.ContainsFunc(f.servers, func(s *server) bool { return s.why == nil })
}

// swaps says whether a server that could answer is being given the goal.
func (f *fleet) swaps() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.ContainsFunc(f.servers, func(s *server) bool { return s.why == nil && s.state == busy })
}

// begin lets requests go to the servers of a model that is not trained.
func (f *fleet) begin() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.goal = &target{}
	f.broadcast()
}

// aim makes a version the one that all servers are to hold, and waits until one of them does: others follow, and get
// requests when they have. Where none can load it, it is tried again and again, by the server that comes up too late as well;
// in the end the error says what each said. It is pipeline.ErrFatal, and at once, where all were started in a way that makes
// them of no use.
func (f *fleet) aim(ctx context.Context, t *target) error {
	f.mu.Lock()
	if f.goal == nil || *f.goal != *t {
		f.goal, f.labels[t.label] = t, t.version
		f.broadcast()
	}
	f.mu.Unlock()
	limit := time.Duration(f.cfg.LoadTimeout + f.cfg.HealthTimeout)
	if f.cfg.Swap == inference.SwapFinish {
		limit += time.Duration(f.cfg.DrainTimeout)
	}
	return f.wait(ctx, limit, func() (bool, error) {
		if *f.goal != *t {
			return false, fmt.Errorf("%s is to be held instead", f.goal)
		}
		return len(f.ready(nil)) > 0, f.useless()
	})
}

// String names a version in messages.
func (t *target) String() string {
	if t == nil {
		return "no policy version"
	}
	return fmt.Sprintf("policy version %d", t.version)
}

// misstarted is what is wrong with a server until somebody starts it in another way.
type misstarted struct{ error }

// Unwrap gives the reason.
func (m misstarted) Unwrap() error { return m.error }

// useless is an error where all servers were started in a way that makes them of no use. The lock is held.
func (f *fleet) useless() error {
	for _, s := range f.servers {
		if s.state != down || !errors.As(s.why, new(misstarted)) {
			return nil
		}
	}
	return pipeline.Fatal("%w", f.states())
}

// states says why no server can answer. The lock is held.
func (f *fleet) states() error {
	var all []string
	for _, s := range f.servers {
		switch {
		case s.why != nil:
			all = append(all, fmt.Sprintf("%s: %v", s.url, s.why))
		case s.state == doubted:
			all = append(all, fmt.Sprintf("%s is looked at, after a request failed there", s.url))
		default:
			all = append(all, fmt.Sprintf("%s is given %s", s.url, f.goal))
		}
	}
	return errors.New("no server can answer: " + strings.Join(all, "; "))
}

// late is that what was waited for did not come in time.
type late struct{ error }

// Unwrap gives the reason.
func (l late) Unwrap() error { return l.error }

// wait calls done, under the lock, whenever something has changed, until it says so or fails, limit is over (late) or ctx ends.
func (f *fleet) wait(ctx context.Context, limit time.Duration, done func() (bool, error)) error {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		f.mu.Lock()
		ok, err := done()
		changed, stopped := f.changed, f.stopped
		f.mu.Unlock()
		switch {
		case ok || err != nil:
			return err
		case stopped:
			return errStopping
		}
		select {
		case <-changed:
		case <-deadline.C:
			f.mu.Lock()
			defer f.mu.Unlock()
			return late{fmt.Errorf("within %v, %w", limit, f.states())}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// errStopping refuses requests once the stage stops.
var errStopping = &inference.Error{Status: http.StatusServiceUnavailable, Code: inference.CodeStopping, Message: "the server is stopping"}

// ready are the servers that hold the goal, without some. The lock is held.
func (f *fleet) ready(but []*server) []*server {
	var all []*server
	if f.goal == nil {
		return nil
	}
	for _, s := range f.servers {
		if s.state == ready && s.holds == *f.goal && !slices.Contains(but, s) {
			all = append(all, s)
		}
	}
	return all
}

// hold makes a version the goal as soon as nobody needs the one before, and keeps it so until release is called.
func (f *fleet) hold(ctx context.Context, t *target, limit time.Duration) (release func(), err error) {
	err = f.wait(ctx, limit, func() (bool, error) {
		if f.users > 0 && (f.goal == nil || *f.goal != *t) {
			return false, nil
		}
		if f.goal == nil || *f.goal != *t {
			f.goal, f.labels[t.label] = t, t.version
			f.broadcast()
		}
		f.users++
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.users--
		f.broadcast()
	}), nil
}

// forget gives up a version that nobody needs.
func (f *fleet) forget(version int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.goal != nil && f.goal.version == version {
		f.goal = nil
		f.broadcast()
	}
}

// longest is how many tokens all servers that were looked at take; 0 before.
func (f *fleet) longest() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	least := 0
	for _, s := range f.servers {
		if s.longest > 0 && (least == 0 || s.longest < least) {
			least = s.longest
		}
	}
	return least
}
