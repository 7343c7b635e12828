package inference

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"sync"

	"github.com/prl-project/prl/stages/internal/lm"
)

// native is the backend on stages/internal/lm. All sequences share one decoder, whatever version serves them: a step runs
// the sequences of one version after those of another, with the weights exchanged in between. So requests join and leave
// between steps, a new version costs a running request nothing but other weights at its next token, and versions beyond
// the first cost the memory of their weights only.
type native struct {
	cfg Config

	mu      sync.Mutex
	models  map[int64]*lm.Model
	newest  int64
	shape   []byte // config of the first model, which the others must have too
	maxLen  int
	tokens  *lm.Tokenizer
	waiting []*sequence // not yet in a slot, in the order they came
	stopped bool
	wake    chan struct{} // capacity 1: there is something to do
}

func newNative(cfg Config) *native {
	return &native{cfg: cfg, models: map[int64]*lm.Model{}, newest: none, wake: make(chan struct{}, 1)}
}

// MaxLen implements Backend.
func (n *native) MaxLen() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.maxLen
}

// Tokenizer implements Backend.
func (n *native) Tokenizer() Tokenizer {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.tokens == nil {
		return nil
	}
	return n.tokens
}

// Load implements Backend.
func (n *native) Load(_ context.Context, p Policy) error {
	m, t, err := buildModel(p)
	if err != nil {
		return err
	}
	shape, err := json.Marshal(m.Config())
	if err != nil {
		return fmt.Errorf("config of the model: %w", err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	switch {
	case n.shape == nil:
		n.shape, n.maxLen = shape, min(n.cfg.MaxModelLen, m.Config().MaxPositionEmbeddings)
	case string(n.shape) != string(shape):
		return fmt.Errorf("the model has the config %s, the versions before had %s", shape, n.shape)
	}
	n.models[p.Version], n.tokens = m, t
	n.newest = max(n.newest, p.Version)
	n.signal()
	return nil
}

func buildModel(p Policy) (*lm.Model, *lm.Tokenizer, error) {
	var cfg lm.Config
	if err := json.Unmarshal(p.Config, &cfg); err != nil {
		return nil, nil, fmt.Errorf("config.json: %w", err)
	}
	t, err := lm.ParseTokenizer(p.Tokenizer)
	if err != nil {
		return nil, nil, err
	}
	if t.VocabSize() != cfg.VocabSize {
		return nil, nil, fmt.Errorf("vocab_size is %d, but the tokenizer has %d tokens", cfg.VocabSize, t.VocabSize())
	}
	params, err := lm.ReadSafetensors(p.Weights)
	if err != nil {
		return nil, nil, err
	}
	m, err := lm.New(cfg, 0)
	if err != nil {
		return nil, nil, err
	}
	return m, t, m.Load(params)
}

// Unload implements Backend.
func (n *native) Unload(version int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.models, version)
}

// Generate implements Backend.
func (n *native) Generate(ctx context.Context, r Request) (Completion, error) {
	s, err := n.enqueue(ctx, r)
	if err != nil {
		return Completion{}, err
	}
	select {
	case res := <-s.done:
		return res.completion, res.err
	case <-ctx.Done():
		n.mu.Lock()
		n.signal() // the slot is wanted back
		n.mu.Unlock()
		return Completion{}, context.Cause(ctx)
	}
}

func (n *native) enqueue(ctx context.Context, r Request) (*sequence, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	version := n.newest
	if r.PinVersion != nil {
		version = *r.PinVersion
	}
	model := n.models[version]
	switch {
	case n.stopped:
		return nil, errStopping
	case model == nil:
		return nil, refuse(http.StatusInternalServerError, CodeInternal, "policy version %d is not loaded", version)
	case len(r.Tokens) >= n.maxLen:
		return nil, refuse(http.StatusBadRequest, CodeTooLong, "the prompt has %d tokens, which leaves no room in a context of %d", len(r.Tokens), n.maxLen)
	}
	for i, t := range r.Tokens {
		if t < 0 || int(t) >= model.Config().VocabSize {
			return nil, refuse(http.StatusBadRequest, CodeInvalid, "token %d of the prompt is %d: not in the vocabulary of %d", i, t, model.Config().VocabSize)
		}
	}
	if room := n.maxLen - len(r.Tokens); r.MaxTokens == 0 || r.MaxTokens > room {
		r.MaxTokens = room
	}
	s := newSequence(ctx, r, version, model)
	n.waiting = append(n.waiting, s)
	n.signal()
	return s, nil
}

// signal wakes the loop. The lock is held.
func (n *native) signal() {
	select {
	case n.wake <- struct{}{}:
	default:
	}
}

// errStopping refuses requests once the server stops.
var errStopping = refuse(http.StatusServiceUnavailable, CodeStopping, "the server is stopping")

// Run implements Backend.
func (n *native) Run(ctx context.Context) error {
	var b *batch
	defer func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.stopped = true
		for _, s := range n.waiting {
			s.fail(errStopping)
		}
		if b != nil {
			for _, s := range b.running {
				s.fail(errStopping)
			}
		}
	}()
	for ctx.Err() == nil {
		n.mu.Lock()
		newest := n.models[n.newest]
		if b == nil && newest != nil {
			var err error
			if b, err = newBatch(n.cfg, newest, n.maxLen); err != nil {
				n.mu.Unlock()
				return fmt.Errorf("native inference: %w", err)
			}
		}
		if b != nil {
			n.waiting = b.admit(n.waiting, newest, n.newest)
		}
		n.mu.Unlock()
		if b == nil || len(b.running) == 0 {
			select {
			case <-n.wake:
			case <-ctx.Done():
			}
			continue
		}
		b.step()
	}
	return nil
}
