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
	served  *served // that serves the next token
	line    *line   // it came by; of the loop
	rng     *rand.Rand
	slot    int
	pending []int32 // tokens that are not in the slot yet: the rest of the prompt, or the token sampled last
	mu      sync.Mutex
	out     Completion
	ended   bool          // its result is in done
	done    chan result   // capacity 1
	grown   chan struct{} // capacity 1: there is more in out; nil where nobody watches
	course  *course       // nil where it is not traced
}

type result struct {
	completion Completion
	err        error
}

func newSequence(ctx context.Context, r Request, m *served) *sequence {
	n := min(r.MaxTokens, 64)
	r.Tokens, r.StopTokens = slices.Clone(r.Tokens), slices.Clone(r.StopTokens) // the caller may leave before the loop does
	s := &sequence{
		ctx: ctx, request: r, served: m, rng: lm.NewRNG(uint64(r.Seed)), pending: r.Tokens,
		out:  Completion{Tokens: make([]int32, 0, n), Logprobs: make([]float32, 0, n)},
		done: make(chan result, 1), course: courseOf(ctx),
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
	if v := s.served.version; v >= 0 && (len(o.Versions) == 0 || o.Versions[len(o.Versions)-1].Version != v) {
		o.Versions = append(o.Versions, schemas.VersionRun{Offset: len(o.Tokens), Version: v})
	}
	o.Tokens, o.Logprobs = append(o.Tokens, token), append(o.Logprobs, logprob)
	s.course.token()
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
	running    []*sequence
	chunks     []lm.Chunk
	inStep     []*sequence // aligned with chunks
}

func newBatch(cfg Config, m *lm.Model, maxLen int) (*batch, error) {
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
	return &batch{decoder: d, slots: newSlots(count), stepTokens: cfg.StepTokens}, nil
}

// admit brings sequences without a pin to the newest version, lets those go that nobody waits for any more, and takes
// waiting ones in as long as there are slots: of the run whose turn it is the one that came first.
func (b *batch) admit(waiting *lines) {
	b.running = slices.DeleteFunc(b.running, func(s *sequence) bool {
		if err := s.served.of.refused; err != nil && s.ctx.Err() == nil {
			s.fail(err)
		} else if s.ctx.Err() == nil {
			s.follow()
			return false
		}
		b.slots.free(s.slot)
		return true
	})
	for b.slots.some() {
		s := waiting.take()
		if s == nil {
			return
		}
		s.follow()
		slot, keep, _ := b.slots.take(s.request.Tokens, s.served.id)
		b.decoder.Truncate(slot, keep)
		s.slot, s.pending, s.out.Cached = slot, s.request.Tokens[keep:], keep
		s.line.party.Charge(len(s.pending))
		s.course.begin("")
		b.running = append(b.running, s)
	}
}

// follow brings a sequence without a pin to the newest version.
func (s *sequence) follow() {
	if s.request.PinVersion == nil && s.request.Policy == "" {
		of := s.served.of
		s.served = of.loaded[of.newest]
	}
}

// step brings every running sequence one token further, or as much of its prompt in as fits into the step.
func (b *batch) step() {
	slices.SortStableFunc(b.running, func(x, y *sequence) int { return cmp.Compare(x.served.id, y.served.id) })
	for from := 0; from < len(b.running); {
		to := from + 1
		for to < len(b.running) && b.running[to].served == b.running[from].served {
			to++
		}
		b.stepModel(b.running[from:to])
		from = to
	}
	b.running = slices.DeleteFunc(b.running, func(s *sequence) bool {
		if s.ended {
			b.slots.free(s.slot)
		}
		return s.ended
	})
}

// stepModel runs the sequences of one model.
func (b *batch) stepModel(group []*sequence) {
	b.chunks, b.inStep = b.chunks[:0], b.inStep[:0]
	served, room := group[0].served, b.stepTokens
	model := served.model
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
		b.slots.extend(s.slot, taken, served.id)
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
		s.fail(refuse(http.StatusInternalServerError, CodeInternal, "%s gives log-probabilities that are not finite", policyName(s.request.Policy, s.served.version)))
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
	s.served.of.sampled(s.served.version)
	s.line.party.Charge(1)
	s.add(token, logprob, top)
}
