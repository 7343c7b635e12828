package inference

import (
	"cmp"
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// sequence is a request on its way.
type sequence struct {
	ctx     context.Context
	request Request
	version int64 // that serves the next token; the id of a frozen policy
	model   *lm.Model
	rng     *rand.Rand
	slot    int
	pending []int32 // tokens that are not in the slot yet: the rest of the prompt, or the token sampled last
	mu      sync.Mutex
	out     Completion
	ended   bool          // its result is in done
	done    chan result   // capacity 1
	grown   chan struct{} // capacity 1: there is more in out; nil where nobody watches
}

type result struct {
	completion Completion
	err        error
}

func newSequence(ctx context.Context, r Request, version int64, m *lm.Model) *sequence {
	n := min(r.MaxTokens, 64)
	r.Tokens, r.StopTokens = slices.Clone(r.Tokens), slices.Clone(r.StopTokens) // the caller may leave before the loop does
	s := &sequence{
		ctx: ctx, request: r, version: version, model: m, rng: lm.NewRNG(uint64(r.Seed)), pending: r.Tokens,
		out:  Completion{Tokens: make([]int32, 0, n), Logprobs: make([]float32, 0, n)},
		done: make(chan result, 1),
	}
	if r.OnTokens != nil {
		s.grown = make(chan struct{}, 1)
	}
	return s
}

// soFar is what has been sampled. The loop only ever appends to it.
func (s *sequence) soFar() Completion {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.out
	c.Tokens, c.Logprobs, c.Top, c.Versions = slices.Clip(c.Tokens), slices.Clip(c.Logprobs), slices.Clip(c.Top), slices.Clip(c.Versions)
	c.FinishReason = ""
	return c
}

func (s *sequence) fail(err error) { s.end(result{err: err}) }

func (s *sequence) end(r result) {
	s.ended = true
	s.done <- r
}

// add appends a sampled token, and ends the sequence where it was the last.
func (s *sequence) add(token int32, logprob float32, top []TopLogprob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &s.out
	if s.version >= 0 && (len(o.Versions) == 0 || o.Versions[len(o.Versions)-1].Version != s.version) {
		o.Versions = append(o.Versions, schemas.VersionRun{Offset: len(o.Tokens), Version: s.version})
	}
	o.Tokens, o.Logprobs = append(o.Tokens, token), append(o.Logprobs, logprob)
	if top != nil {
		o.Top = append(o.Top, top)
	}
	switch {
	case slices.Contains(s.request.StopTokens, token):
		o.FinishReason = FinishStop
	case len(o.Tokens) == s.request.MaxTokens:
		o.FinishReason = FinishLength
	}
	if o.FinishReason != "" {
		s.end(result{completion: *o})
	} else if s.grown != nil {
		wake(s.grown)
	}
	s.pending = o.Tokens[len(o.Tokens)-1:]
}

// batch is the running sequences and the decoder that holds them. One goroutine uses it.
type batch struct {
	decoder    *lm.Decoder
	slots      *slots
	sampler    lm.Sampler
	stepTokens int
	sampled    func(version int64) // told of every token of a version
	running    []*sequence
	chunks     []lm.Chunk
	inStep     []*sequence // aligned with chunks
}

func newBatch(cfg Config, m *lm.Model, maxLen int, sampled func(version int64)) (*batch, error) {
	c := m.Config()
	slotBytes := c.NumHiddenLayers * maxLen * 2 * c.KVDim() * 4
	count := max(1, min(cfg.Slots, cfg.CacheMiB<<20/slotBytes))
	d, err := lm.NewDecoder(m, count, maxLen)
	if err != nil {
		return nil, err
	}
	for range count {
		d.Acquire() // all of them: slots says which are free
	}
	return &batch{decoder: d, slots: newSlots(count), stepTokens: cfg.StepTokens, sampled: sampled}, nil
}

// admit brings sequences without a pin to the newest version, lets those go that nobody waits for any more, and takes
// waiting ones in as long as there are slots. It returns those that still wait. newest may be nil where all sequences are
// of frozen policies.
func (b *batch) admit(waiting []*sequence, newest *served) []*sequence {
	update := func(s *sequence) {
		if s.request.PinVersion == nil && s.request.Policy == "" {
			s.version, s.model = newest.id, newest.model
		}
	}
	b.running = slices.DeleteFunc(b.running, func(s *sequence) bool {
		if s.ctx.Err() != nil {
			b.slots.free(s.slot)
			return true
		}
		update(s)
		return false
	})
	for i, s := range waiting {
		if s.ctx.Err() != nil {
			continue
		}
		update(s)
		slot, keep, ok := b.slots.take(s.request.Tokens, s.version)
		if !ok {
			return waiting[i:]
		}
		b.decoder.Truncate(slot, keep)
		s.slot, s.pending, s.out.Cached = slot, s.request.Tokens[keep:], keep
		b.running = append(b.running, s)
	}
	return nil
}

// step brings every running sequence one token further, or as much of its prompt in as fits into the step.
func (b *batch) step() {
	slices.SortStableFunc(b.running, func(x, y *sequence) int { return cmp.Compare(x.version, y.version) })
	for from := 0; from < len(b.running); {
		to := from + 1
		for to < len(b.running) && b.running[to].version == b.running[from].version {
			to++
		}
		b.stepVersion(b.running[from:to])
		from = to
	}
	b.running = slices.DeleteFunc(b.running, func(s *sequence) bool {
		if s.ended {
			b.slots.free(s.slot)
		}
		return s.ended
	})
}

// stepVersion runs the sequences of one version.
func (b *batch) stepVersion(group []*sequence) {
	b.chunks, b.inStep = b.chunks[:0], b.inStep[:0]
	model, version, room := group[0].model, group[0].version, b.stepTokens
	for _, s := range group {
		tokens := s.pending
		if len(s.out.Tokens) == 0 {
			tokens = tokens[:min(len(tokens), room)]
			room -= len(tokens)
		}
		if len(tokens) > 0 {
			b.chunks = append(b.chunks, lm.Chunk{Slot: s.slot, Tokens: tokens})
			b.inStep = append(b.inStep, s)
		}
	}
	logits, err := b.run(model)
	if err != nil {
		for _, s := range b.inStep {
			s.fail(&Error{Status: http.StatusInternalServerError, Code: CodeInternal, Message: "step of the model", Cause: err})
		}
		return
	}
	vocab := model.Config().VocabSize
	for i, s := range b.inStep {
		taken := b.chunks[i].Tokens
		b.slots.extend(s.slot, taken, version)
		s.pending = s.pending[len(taken):]
		if len(s.pending) == 0 {
			b.sample(s, logits[i*vocab:(i+1)*vocab])
		}
	}
}

func (b *batch) run(model *lm.Model) ([]float32, error) {
	if err := b.decoder.SetModel(model); err != nil {
		return nil, err
	}
	return b.decoder.Step(b.chunks)
}

// sample draws the next token of a sequence.
func (b *batch) sample(s *sequence, logits []float32) {
	topP := float32(s.request.TopP)
	if topP == 0 {
		topP = 1
	}
	token, logprob := b.sampler.Sample(logits, float32(s.request.Temperature), topP, s.rng)
	if f := float64(logprob); math.IsNaN(f) || math.IsInf(f, 0) {
		s.fail(refuse(http.StatusInternalServerError, CodeInternal, "%s gives log-probabilities that are not finite", policyName(s.request.Policy, s.version)))
		return
	}
	var top []TopLogprob
	if n := s.request.TopLogprobs; n > 0 {
		for _, t := range b.sampler.Top(logits, n) {
			if !math.IsInf(float64(t.LogProb), -1) {
				top = append(top, TopLogprob{t.Token, t.LogProb})
			}
		}
	}
	b.sampled(s.version)
	s.add(token, logprob, top)
}
