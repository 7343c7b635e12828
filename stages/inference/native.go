package inference

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/prl-project/prl/stages/internal/lm"
)

// native is the backend on stages/internal/lm. All sequences of models of one shape share a decoder, whatever version or
// frozen policy serves them: a step runs the sequences of one after those of another, with the weights exchanged in
// between. So requests join and leave between steps, a new version costs a running request nothing but other weights at
// its next token, and models beyond the first cost the memory of their weights only.
type native struct {
	cfg     Config
	sampled func(version int64) // told of tokens of versions: of the first at least

	mu      sync.Mutex
	models  map[int64]*served  // versions
	frozen  map[string]*served // frozen policies
	newest  int64
	lanes   []*lane
	lane    *lane      // of the versions; nil before the first
	probes  []*probing // not yet looked at, in the order they came
	stopped bool
	wake    chan struct{} // capacity 1: there is something to sample
	probed  chan struct{} // capacity 1: there is something to probe
}

// served is a model that requests are for.
type served struct {
	id      int64 // version; below mixed for a frozen policy
	model   *lm.Model
	lane    *lane
	learner *lm.Learner // of the loop that answers probes, made with the first
}

// lane is the sequences of models of one shape.
type lane struct {
	shape   string // config of the models
	maxLen  int
	waiting []*sequence // not yet in a slot, in the order they came
	batch   *batch      // of the loop that samples, made with the first sequence
}

func newNative(cfg Config) *native {
	return &native{
		cfg: cfg, sampled: func(int64) {}, models: map[int64]*served{}, frozen: map[string]*served{}, newest: none,
		wake: make(chan struct{}, 1), probed: make(chan struct{}, 1),
	}
}

// watch implements watchable.
func (n *native) watch(sampled func(version int64)) { n.sampled = sampled }

// Limits implements Backend.
func (n *native) Limits(policy string) (completed, probed int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	s := n.models[n.newest]
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
	s := &served{id: p.Version, model: m}
	if p.Name != "" {
		s.id, s.lane = mixed-1-int64(len(n.frozen)), n.laneOf(string(shape), m)
		n.frozen[p.Name] = s
		return nil
	}
	if n.lane != nil && n.lane.shape != string(shape) {
		return fmt.Errorf("the model has the config %s, the versions before had %s", shape, n.lane.shape)
	}
	s.lane = n.laneOf(string(shape), m)
	n.models[p.Version], n.lane = s, s.lane
	n.newest = max(n.newest, p.Version)
	n.signal()
	return nil
}

// laneOf is the lane of a shape. The lock is held.
func (n *native) laneOf(shape string, m *lm.Model) *lane {
	for _, l := range n.lanes {
		if l.shape == shape {
			return l
		}
	}
	l := &lane{shape: shape, maxLen: min(n.cfg.MaxModelLen, m.Config().MaxPositionEmbeddings)}
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
	delete(n.models, version)
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
	s := newSequence(ctx, r, model.id, model.model)
	model.lane.waiting = append(model.lane.waiting, s)
	n.signal()
	return s, nil
}

// chosen is the model that a request is for. The lock is held.
func (n *native) chosen(policy string, pin *int64) (*served, error) {
	version := n.newest
	if pin != nil {
		version = *pin
	}
	s := n.models[version]
	if policy != "" {
		s = n.frozen[policy]
	}
	switch {
	case n.stopped:
		return nil, errStopping
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
func (n *native) signal() { wake(n.wake) }

func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// errStopping refuses requests once the server stops.
var errStopping = refuse(http.StatusServiceUnavailable, CodeStopping, "the server is stopping")

// Run implements Backend: one loop samples, another answers probes, so that neither waits for the other.
func (n *native) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer n.stop(&wg)
	wg.Go(func() { n.answerProbes(ctx) })
	for ctx.Err() == nil {
		lanes, err := n.admit()
		if err != nil {
			cancel()
			return fmt.Errorf("native inference: %w", err)
		}
		if len(lanes) == 0 {
			select {
			case <-n.wake:
			case <-ctx.Done():
			}
		}
		for _, l := range lanes {
			l.batch.step()
		}
	}
	return nil
}

// admit takes sequences that wait into slots, and returns the lanes in which some run.
func (n *native) admit() (busy []*lane, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, l := range n.lanes {
		if l.batch == nil && len(l.waiting) > 0 {
			if l.batch, err = newBatch(n.cfg, l.waiting[0].model, l.maxLen, n.sampled); err != nil {
				return nil, err
			}
		}
		if l.batch == nil {
			continue
		}
		if l.waiting = l.batch.admit(l.waiting, n.models[n.newest]); len(l.batch.running) > 0 {
			busy = append(busy, l)
		}
	}
	return busy, nil
}

// stop fails what is left, once the loops have ended.
func (n *native) stop(loops *sync.WaitGroup) {
	loops.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.stopped = true
	for _, l := range n.lanes {
		for _, s := range l.waiting {
			s.fail(errStopping)
		}
		if l.batch != nil {
			for _, s := range l.batch.running {
				s.fail(errStopping)
			}
		}
	}
	for _, p := range n.probes {
		p.end(nil, errStopping)
	}
}
