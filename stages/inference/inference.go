// Package inference serves the policy: every sampled token comes back with its id, its log-probability after temperature
// and the policy version that sampled it, and what a request gets does not depend on what else is served (I6, I7).
//
// Hard guarantees, each with a test:
//   - Batch invariance: the same prompt, seed and version give the same tokens and log-probabilities, bit for bit, alone
//     or among others, whatever prompts were served before.
//   - A new version is swapped in between two tokens and drops no request; Completion.Versions says where.
//   - A request with a pin is served by exactly that version. If the version is not published yet the request is held
//     until it is, at most Config.Hold; if it is not loaded any more it is loaded again from the blob store.
//   - Nothing is served under a version before its record, or with bytes other than the record's SHA-256 names: of a version
//     that is published as a delta, also the whole weights that it gives.
//   - Parameters that would change the distribution in a way that is not implemented are refused by name.
//   - Frozen policies ([frozen.<name>], folders) are served beside it under their names, from before the first request to
//     the end, with the same invariance. They have no versions, may have another shape, and have the run's tokenizer:
//     otherwise the stage does not start. The SHA-256 of their weights is logged, and /v1/models lists it.
//   - A probe gives, of tokens that stand already, the bits with which they would have been sampled.
//   - Streaming, stop strings and several choices change nothing of what is sampled: a reply has the very tokens that the
//     request of that seed alone gives, up to the one that ends it. A client that reads slowly holds up nobody else.
//
// What the HTTP interface takes and refuses stands in README.md.
//
// Optimisations: a prompt that goes on where a sequence kept in a slot ends is not computed again (under the same version).
//
//	Reads    policies, weights from the blob store; folders of frozen policies; requests in process or over HTTP
//	Writes   nothing
//	Key      none
//	State    none: policies is read from the start
//	On replay requests are the caller's to repeat; with the same seed and pin the reply is the same
package inference

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
)

// Stage is the stage's name.
const Stage = "inference"

// Server is the stage. It is a Host for callers in its process.
type Server struct {
	rt       *pipeline.Runtime
	cfg      Config
	frozen   map[string]string // folders of the frozen policies, by name
	weights  map[string]string // SHA-256 of their weights, in hex; complete once thawed is closed
	thawed   chan struct{}     // closed once they are loaded
	fixed    bool              // none is trained: the only policy is a frozen one
	backend  Backend
	policies *policies
	loader   *loader
	voice    voice
	metrics  *metrics

	complaint complaint // of the newest version; publish's alone

	api        *API         // over HTTP
	inner      http.Handler // of one run
	began      time.Time
	enterFleet func()      // lets a fleet send requests here; nil without a fleet
	leaveFleet func()      // at the end, however far it came; nil without a fleet
	final      atomic.Bool // the run's last version is known

	listening chan struct{} // closed once addr stands
	addr      net.Addr

	holding context.Context // ends when the stage stops: nothing is held any longer
	endHold context.CancelCauseFunc

	mu       sync.Mutex
	requests int  // in the server
	asked    bool // since Idle was called
	stopping bool // no new ones
	empty    chan struct{}
}

// New makes the stage with the native backend. It does no I/O: Run does. It serves those frozen policies that are folders.
func New(rt *pipeline.Runtime, cfg Config, frozen map[string]FrozenConfig) (*Server, error) {
	cfg, err := cfg.forRun(rt.Run)
	if err != nil {
		return nil, err
	}
	return NewServer(rt, cfg, frozen, newNative(cfg))
}

// NewServer makes the stage with a backend.
func NewServer(rt *pipeline.Runtime, cfg Config, frozen map[string]FrozenConfig, b Backend) (*Server, error) {
	cfg, err := cfg.forRun(rt.Run)
	if err != nil {
		return nil, err
	}
	if err := ValidateFrozen(frozen); err != nil {
		return nil, err
	}
	own := folders(frozen)
	if _, taken := own[cfg.Model]; taken {
		return nil, fmt.Errorf("frozen.%s: the policy that is trained is served under this name (inference.model, or run.name); choose another", cfg.Model)
	}
	return newServer(rt, cfg, own, b)
}

func newServer(rt *pipeline.Runtime, cfg Config, frozen map[string]string, b Backend) (*Server, error) {
	m, err := newMetrics(rt.Registry)
	if err != nil {
		return nil, fmt.Errorf("inference metrics: %w", err)
	}
	s := &Server{
		rt: rt, cfg: cfg, frozen: frozen, weights: map[string]string{}, backend: b, metrics: m,
		listening: make(chan struct{}), empty: make(chan struct{}), thawed: make(chan struct{}),
	}
	s.voice.name, s.began = cfg.Renderer, time.Now()
	s.api = newAPI(s, cfg.Model, rt.Log, cfg.MaxRequests, "inference.max_requests")
	s.api.probe = s.handleProbe
	s.inner = s.handler()
	s.holding, s.endHold = context.WithCancelCause(context.Background())
	s.loader = newLoader(rt.Blobs, cfg.KeepMiB)
	if w, ok := b.(watchable); ok {
		w.watch(m.arrival.sampled)
	}
	s.policies = newPolicies(cfg.Versions, time.Duration(cfg.Hold), s.load, b.Unload)
	if cfg.OneVersion() {
		s.policies.single, s.policies.spare = true, 0
	}
	rt.Health.Set(Stage, false)
	return s, nil
}

// Model serves callers in this process, as HTTP does others. It may be used before Run: requests are held.
func (s *Server) Model() Host { return s }

// String implements Host.
func (s *Server) String() string { return "the inference stage of this process" }

// Listening is closed when Addr is known.
func (s *Server) Listening() <-chan struct{} { return s.listening }

// Addr is the address of the HTTP server; nil where there is none, or before Listening is closed.
func (s *Server) Addr() net.Addr {
	select {
	case <-s.listening:
		return s.addr
	default:
		return nil
	}
}

// Generate implements Generator.
func (s *Server) Generate(ctx context.Context, r Request) (c Completion, err error) {
	ctx, done := s.traced(ctx, tracing.GenerateSpan, r.Seed)
	if done != nil {
		defer func() { done(r, c, err) }()
	}
	if err := s.enter(); err != nil {
		s.metrics.ended(r, c, err)
		return Completion{}, err
	}
	defer s.leave()
	defer func() { s.metrics.ended(r, c, err) }()
	ctx, cancel := s.timed(ctx)
	defer cancel()
	if r.Policy, err = s.policyOf(r.Policy, r.Model); err != nil {
		return Completion{}, err
	}
	if err := r.validate(); err != nil {
		return Completion{}, err
	}
	s.metrics.held.Inc()
	release, err := s.available(ctx, r.Policy, r.PinVersion)
	s.metrics.held.Dec()
	if err != nil {
		return Completion{}, err
	}
	defer release()
	began := time.Now()
	defer func() { s.metrics.seconds.Observe(time.Since(began).Seconds()) }()
	return s.backend.Generate(ctx, r)
}

// Hear implements Speaker: every request is answered by itself.
func (s *Server) Hear(ctx context.Context, a Ask) (Exchange, error) {
	e := Exchange{Request: a.Request, Generate: s.Generate}
	if a.Messages == nil {
		return e, nil
	}
	speech, err := s.Renderer(ctx)
	if err != nil {
		return e, err
	}
	e.Request.Tokens, err = renderChat(speech, a.Messages, a.Tools)
	return e, err
}

// timed bounds a request as a whole.
func (s *Server) timed(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, time.Duration(s.cfg.Timeout),
		refuse(http.StatusGatewayTimeout, CodeHeldTooLong, "the request took longer than %v", s.cfg.Timeout))
}

// available waits until a request can be served, and keeps the version it is pinned to loaded.
func (s *Server) available(ctx context.Context, policy string, pin *int64) (release func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(s.holding, func() { cancel(context.Cause(s.holding)) })()
	switch {
	case policy != "":
		select {
		case <-s.thawed:
			return func() {}, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	case pin == nil:
		return func() {}, s.policies.waitServing(ctx)
	}
	return s.policies.use(ctx, *pin)
}

func (s *Server) enter() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.stopping:
		return errStopping
	case s.requests >= s.cfg.MaxRequests:
		return refuse(http.StatusServiceUnavailable, CodeOverloaded, "%d requests are in the server already: try again later (inference.max_requests)", s.requests)
	}
	s.requests++
	s.asked = true
	s.metrics.running.Inc()
	return nil
}

// Idle reports whether the run's last version is out, and nothing was asked for since it was called last.
func (s *Server) Idle() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	quiet := s.requests == 0 && !s.asked
	s.asked = false
	return quiet && s.final.Load()
}

func (s *Server) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.requests--
	s.metrics.running.Dec()
	if s.stopping && s.requests == 0 {
		close(s.empty)
	}
}

// Run serves until ctx ends; then running requests have Config.Drain to end. It is called once.
func (s *Server) Run(ctx context.Context) error {
	if s.leaveFleet != nil {
		defer s.leaveFleet()
	}
	if err := s.loadFrozen(ctx); err != nil {
		return err
	}
	var hs *http.Server
	var l net.Listener
	if s.cfg.Listen != "" {
		var err error
		if l, err = net.Listen("tcp", s.cfg.Listen); err != nil {
			return fmt.Errorf("serve inference: %w (inference.listen chooses another address)", err)
		}
		s.addr, hs = l.Addr(), httpServer(s.root(), s.cfg)
		s.rt.Log.Info("inference serves", "addr", "http://"+l.Addr().String())
	}
	close(s.listening)
	if s.enterFleet != nil {
		s.enterFleet()
	}
	work, endWork := context.WithCancel(context.WithoutCancel(ctx))
	defer endWork()
	g, stop := errgroup.WithContext(ctx)
	g.Go(func() error { return s.backend.Run(work) })
	if !s.fixed {
		g.Go(func() error { return s.follow(stop) })
	}
	if hs != nil {
		g.Go(func() error {
			if err := hs.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				return fmt.Errorf("serve inference: %w", err)
			}
			return nil
		})
	}
	g.Go(func() error {
		<-stop.Done()
		s.drain()
		endWork()
		if hs == nil {
			return nil
		}
		last, cancel := context.WithTimeout(context.Background(), time.Second) // replies are only written out
		defer cancel()
		if hs.Shutdown(last) != nil {
			return hs.Close()
		}
		return nil
	})
	return g.Wait()
}

// drain refuses new and held requests and waits for the running ones.
func (s *Server) drain() {
	s.mu.Lock()
	s.stopping = true
	if s.requests == 0 {
		close(s.empty)
	}
	s.mu.Unlock()
	s.endHold(errStopping)
	t := time.NewTimer(time.Duration(s.cfg.Drain))
	defer t.Stop()
	select {
	case <-s.empty:
	case <-t.C:
		s.rt.Log.Warn("requests are cut off by the stop", "after", s.cfg.Drain)
	}
}

// retry is how long after a failure the newest version is loaded, or the topic is read, again.
const retry = 2 * time.Second

// follow makes versions known as their records come, and loads the newest.
func (s *Server) follow(ctx context.Context) error {
	f, err := s.rt.Follow(pipeline.TopicPolicies)
	if err != nil {
		return err
	}
	defer f.Close()
	records, err := f.Load(ctx)
	if err != nil && !errors.Is(err, pipeline.ErrFatal) && ctx.Err() == nil {
		s.rt.Log.Warn("policies are not read to their end yet", "error", err)
		err = nil
	}
	for ; err == nil; records, err = s.poll(ctx, f) {
		if err := s.publish(ctx, records); err != nil {
			return err
		}
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// poll waits for more records. What fails for now is tried again: requests are served meanwhile.
func (s *Server) poll(ctx context.Context, f *pipeline.Follower) ([]pipeline.Record, error) {
	wait, cancel := context.WithTimeout(ctx, retry)
	defer cancel()
	records, err := f.Poll(wait)
	if err != nil && !errors.Is(err, pipeline.ErrFatal) {
		s.rt.Log.Warn("policies cannot be read at the moment", "error", err)
		<-wait.Done()
		err = nil
	}
	return records, errors.Join(err, ctx.Err())
}

// publish takes records of policies. A version that cannot be loaded is logged, now and then, and tried again when this is
// called next; meanwhile the one before goes on serving, where the backend still has it. An error is fatal.
func (s *Server) publish(ctx context.Context, records []pipeline.Record) error {
	var versions []*schemas.PolicyVersion
	for _, r := range records {
		if v, ok := r.Value.(*schemas.PolicyVersion); ok {
			versions = append(versions, v)
			if v.Final {
				s.final.Store(true)
			}
			s.metrics.arrival.published(v)
			s.rt.Metrics.Policy(Stage, v)
		}
	}
	s.loader.publish(versions...)
	s.policies.publish(versions...)
	newest, err := s.policies.serveNewest(ctx)
	switch {
	case err == nil && newest != none:
		s.metrics.version.Set(float64(newest))
		s.rt.Health.Set(Stage, true)
		s.rt.Mended(Stage, faults.PolicyStale, "")
	case errors.Is(err, errTokenizer), errors.Is(err, pipeline.ErrFatal):
		return pipeline.Fatal("%w", err)
	case err != nil && ctx.Err() == nil:
		if s.policies.behind() > int64(s.rt.Run.MaxOffPolicySteps) {
			s.rt.Fault(Stage, faults.PolicyStale, "", err)
		}
		if s.complaint.due(err, time.Now()) {
			s.rt.Log.Error("the newest policy cannot be served; it is tried again", "error", err)
		}
	}
	return nil
}

// complaint is what was logged last of something that is tried again and again.
type complaint struct {
	text string
	at   time.Time
}

// due says whether an error is to be logged now: another one than before, or the same no more than once a minute.
func (c *complaint) due(err error, now time.Time) bool {
	if err.Error() == c.text && now.Sub(c.at) < time.Minute {
		return false
	}
	c.text, c.at = err.Error(), now
	return true
}
