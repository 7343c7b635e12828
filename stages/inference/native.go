package inference

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/prl-project/prl/stages/internal/lm"
)

// engine samples and answers probes for the policies of one run or of several. All sequences of models of one shape share a
// decoder, whatever run, version or frozen policy serves them: a step runs the sequences of one after those of another, with
// the weights exchanged in between. So requests join and leave between steps, a new version costs a running request nothing
// but other weights at its next token, and models beyond the first cost the memory of their weights only.
type engine struct {
	cfg Config

	mu      sync.Mutex
	models  int64 // that were loaded so far
	lanes   []*lane
	busy    []*lane // scratch of admit
	probes  probes  // not yet looked at
	stopped bool
	wake    chan struct{} // capacity 1: there is something to sample
	probed  chan struct{} // capacity 1: there is something to probe
}

// native is the backend on stages/internal/lm: the policies of one run in an engine, which other runs may share. What is under
// a mutex is under the engine's.
type native struct {
	*engine
	longest int                 // sequence, of the run
	share   float64             // of the engine, while other runs want it, too
	sampled func(version int64) // told of tokens of versions: of the first at least

	loaded  map[int64]*served  // versions
	frozen  map[string]*served // frozen policies
	newest  int64
	lane    *lane // of the versions; nil before the first
	refused error // of all requests, once the run is not served any more
}

// served is a model that requests are for.
type served struct {
	id      int64 // of the model in the engine: no two have the same
	version int64 // below 0 for a frozen policy
	of      *native
	model   *lm.Model
	lane    *lane
	learner *lm.Learner // of the loop that answers probes, made with the first
}

// lane is the sequences of models of one shape.
type lane struct {
	shape  string // config of the models
	maxLen int
	users  []*native
	lines  lines  // not yet in a slot
	batch  *batch // of the loop that samples, made with the first sequence
}

func newEngine(cfg Config) *engine {
	return &engine{cfg: cfg, wake: make(chan struct{}, 1), probed: make(chan struct{}, 1)}
}

// newNative is a backend with an engine of its own.
func newNative(cfg Config) *native { return newEngine(cfg).tenant(cfg.MaxModelLen, 1) }

// tenant is a run in the engine.
func (e *engine) tenant(longest int, share float64) *native {
	return &native{
		engine: e, longest: longest, share: share, sampled: func(int64) {}, loaded: map[int64]*served{}, frozen: map[string]*served{}, newest: none,
	}
}

// watch implements watchable.
func (n *native) watch(sampled func(version int64)) { n.sampled = sampled }

// Limits implements Backend.
func (n *native) Limits(policy string) (completed, probed int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.loaded[n.newest]
	if policy != "" {
		s = n.frozen[policy]
	}
	if s == nil {
		return 0, 0
	}
	return s.lane.maxLen, s.model.Config().MaxPositionEmbeddings
}

// Load implements Backend.
func (n *native) Load(_ context.Context, p Policy) error {
	m, err := buildModel(p)
	if err != nil {
		return err
	}
	shape, err := json.Marshal(m.Config())
	if err != nil {
		return fmt.Errorf("config of the model: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.refused != nil {
		return n.refused
	}
	n.models++
	s := &served{id: n.models, version: p.Version, of: n, model: m}
	if p.Name != "" {
		s.version, s.lane = none, n.laneOf(string(shape), m)
		n.frozen[p.Name] = s
		return nil
	}
	if n.lane != nil && n.lane.shape != string(shape) {
		return fmt.Errorf("the model has the config %s, the versions before had %s", shape, n.lane.shape)
	}
	s.lane = n.laneOf(string(shape), m)
	n.loaded[p.Version], n.lane = s, s.lane
	n.newest = max(n.newest, p.Version)
	n.signal()
	return nil
}

// laneOf is the lane of a shape. The lock is held.
func (n *native) laneOf(shape string, m *lm.Model) *lane {
	longest := min(n.longest, m.Config().MaxPositionEmbeddings)
	for _, l := range n.lanes {
		if l.shape == shape && l.maxLen == longest {
			if !slices.Contains(l.users, n) {
				l.users = append(l.users, n)
			}
			return l
		}
	}
	l := &lane{shape: shape, maxLen: longest, users: []*native{n}}
	n.lanes = append(n.lanes, l)
	return l
}

func buildModel(p Policy) (*lm.Model, error) {
	var cfg lm.Config
	if err := json.Unmarshal(p.Config, &cfg); err != nil {
		return nil, fmt.Errorf("config.json: %w", err)
	}
	params, err := lm.ReadSafetensors(p.Weights)
	if err != nil {
		return nil, err
	}
	return lm.NewFrom(cfg, params)
}

// Unload implements Backend.
func (n *native) Unload(version int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.loaded, version)
}

// Generate implements Backend.
func (n *native) Generate(ctx context.Context, r Request) (Completion, error) {
	ctx, leave := context.WithCancel(ctx)
	defer leave()
	s, err := n.enqueue(ctx, r)
	if err != nil {
		return Completion{}, err
	}
	for shown := 0; ; {
		select {
		case res := <-s.done:
			return res.completion, res.err
		case <-s.grown:
			c := s.soFar()
			if len(c.Tokens) == shown || r.OnTokens(c) {
				shown = len(c.Tokens)
				continue
			}
			leave()
			n.signal() // the slot is wanted back
			c.FinishReason = FinishStop
			return c, nil
		case <-ctx.Done():
			n.signal()
			return Completion{}, context.Cause(ctx)
		}
	}
}

func (n *native) enqueue(ctx context.Context, r Request) (*sequence, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	model, err := n.chosen(r.Policy, r.PinVersion)
	if err != nil {
		return nil, err
	}
	maxLen := model.lane.maxLen
	if len(r.Tokens) >= maxLen {
		return nil, refuse(http.StatusBadRequest, CodeTooLong, "the prompt has %d tokens, which leaves no room in a context of %d", len(r.Tokens), maxLen)
	}
	if err := model.known(r.Tokens); err != nil {
		return nil, err
	}
	if room := maxLen - len(r.Tokens); r.MaxTokens == 0 || r.MaxTokens > room {
		r.MaxTokens = room
	}
	s := newSequence(ctx, r, model)
	model.lane.lines.push(s)
	n.signal()
	return s, nil
}

// chosen is the model that a request is for. The lock is held.
func (n *native) chosen(policy string, pin *int64) (*served, error) {
	version := n.newest
	if pin != nil {
		version = *pin
	}
	s := n.loaded[version]
	if policy != "" {
		s = n.frozen[policy]
	}
	switch {
	case n.stopped:
		return nil, errStopping
	case n.refused != nil:
		return nil, n.refused
	case s == nil:
		return nil, refuse(http.StatusInternalServerError, CodeInternal, "%s is not loaded", policyName(policy, version))
	}
	return s, nil
}

// known checks that tokens are in the vocabulary.
func (s *served) known(tokens []int32) error {
	vocab := s.model.Config().VocabSize
	for i, t := range tokens {
		if t < 0 || int(t) >= vocab {
			return refuse(http.StatusBadRequest, CodeInvalid, "token %d is %d: not in the vocabulary of %d", i, t, vocab)
		}
	}
	return nil
}

// signal wakes the loop that samples.
func (e *engine) signal() { wake(e.wake) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errStopping refuses requests once the server stops.
var errStopping = refuse(http.StatusServiceUnavailable, CodeStopping, "the server is stopping")

// Run implements Backend: one loop samples, another answers probes, so that neither waits for the other.
func (e *engine) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer e.stop(&wg)
	wg.Go(func() { e.answerProbes(ctx) })
	for ctx.Err() == nil {
		lanes, err := e.admit()
		if err != nil {
			cancel()
			return fmt.Errorf("native inference: %w", err)
		}
		if len(lanes) == 0 {
			select {
			case <-e.wake:
			case <-ctx.Done():
			}
		}
		for _, l := range lanes {
			l.batch.step()
		}
	}
	return nil
}

// admit takes sequences that wait into slots, and returns the lanes in which some run; they are valid until it is called again.
func (e *engine) admit() (busy []*lane, err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	clear(e.busy) // lanes that have gone are not held
	busy = e.busy[:0]
	e.lanes = slices.DeleteFunc(e.lanes, func(l *lane) bool {
		return len(l.users) == 0 && (l.batch == nil || len(l.batch.running) == 0)
	})
	for _, l := range e.lanes {
		if first := l.lines.first(); l.batch == nil && first != nil {
			if l.batch, err = newBatch(e.cfg, first.served.model, l.maxLen); err != nil {
				return nil, err
			}
		}
		if l.batch == nil {
			continue
		}
		if l.batch.admit(&l.lines); len(l.batch.running) > 0 {
			busy = append(busy, l)
		}
	}
	e.busy = busy
	return busy, nil
}

// stop fails what is left, once the loops have ended.
func (e *engine) stop(loops *sync.WaitGroup) {
	loops.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.stopped = true
	for _, l := range e.lanes {
		l.lines.drop(func(s *sequence) bool {
			s.fail(errStopping)
			return true
		})
		if l.batch != nil {
			for _, s := range l.batch.running {
				s.fail(errStopping)
			}
		}
	}
	e.probes.drop(func(p *probing) bool {
		p.end(nil, errStopping)
		return true
	})
}
