// Package standin is servers of other makes for tests: they speak the HTTP of vLLM 0.32.0 and SGLang 0.5.23 as far as the
// inference stage uses it, sample with a model of package lm, and load weights from the folders they are told to. Every fault
// that a test can switch on is counted when it happens.
package standin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/prl-project/prl/stages/internal/lm"
)

// Request is what a server is asked for.
type Request struct {
	Prompt      []int32
	MaxTokens   int
	Temperature float64
	Seed        int64
	Stop        []int32
	Top         int // most probable tokens beside the sampled one
}

// Span says under which label tokens were sampled.
type Span struct {
	Version string `json:"version"`
	Start   int    `json:"start"`
	End     int    `json:"end"`
}

// Completion is what was sampled. Finish is stop, length or abort.
type Completion struct {
	Tokens   []int32
	Logprobs []float32
	Top      [][]lm.TokenLogProb
	Spans    []Span
	Finish   string
}

// Engine samples one token at a time, of one request or another, and is changed between tokens only.
type Engine struct {
	mu      sync.Mutex
	changed chan struct{} // closed when anything below changes
	base    *lm.Model     // that it is started with
	model   *lm.Model
	weights int // how often the model has changed
	label   string
	paused  bool
	raw     bool   // log-probabilities before temperature
	gate    int    // tokens that each request may sample; negative for all
	refuse  int    // loads that are to fail
	spoil   bool   // a load that fails changes the weights before
	loaded  func() // called once, after the next load and before its reply
	counts  Counts
	abort   chan struct{} // closed when running requests are to end
}

// Counts says what happened.
type Counts struct {
	Tokens   int // sampled
	Prefills int // tokens that were computed without being sampled
	Loads    int // that replaced the weights
	Refused  int // that were to fail, and did
	Pauses   int
	Asked    int // completions and probes
	Unpaused int // weights or labels that were changed while tokens could be sampled: a mistake of the stage
	Hung     int // requests that got no reply
	Failed   int // requests of all kinds that found the engine dead
}

// DefaultLabel is that of weights which nobody named.
const DefaultLabel = "default"

// NewEngine starts with a model.
func NewEngine(base *lm.Model) *Engine {
	e := &Engine{base: base, gate: -1, changed: make(chan struct{})}
	e.restart()
	return e
}

// restart forgets all but the model it is started with. Running requests end.
func (e *Engine) restart() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.abort != nil {
		close(e.abort)
	}
	e.model, e.label, e.paused, e.abort = e.base, DefaultLabel, false, make(chan struct{})
	e.weights++
	e.broadcast()
}

// broadcast wakes everyone who waits. The lock is held.
func (e *Engine) broadcast() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// set changes something under the lock.
func (e *Engine) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
	e.broadcast()
}

// Gate lets each request sample no more than n tokens until it is opened with a negative n.
func (e *Engine) Gate(n int) { e.set(func() { e.gate = n }) }

// Raw makes log-probabilities those before temperature.
func (e *Engine) Raw() { e.set(func() { e.raw = true }) }

// RefuseLoads makes the next n loads fail; spoil makes them change the weights nevertheless.
func (e *Engine) RefuseLoads(n int, spoil bool) { e.set(func() { e.refuse, e.spoil = n, spoil }) }

// OnLoad has f called once, when the next load has replaced the weights and before whoever asked for it is told.
func (e *Engine) OnLoad(f func()) { e.set(func() { e.loaded = f }) }

// onLoad calls what is to be called.
func (e *Engine) onLoad() {
	e.mu.Lock()
	f := e.loaded
	e.loaded = nil
	e.mu.Unlock()
	if f != nil {
		f()
	}
}

// Restart makes the engine forget all but the model it was first started with, while connections stay: for whoever asks, a
// server that is back at once.
func (e *Engine) Restart() { e.restart() }

// Counts says what has happened so far.
func (e *Engine) Counts() Counts {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.counts
}

// Wait blocks until what happened is enough, or ctx ends.
func (e *Engine) Wait(ctx context.Context, enough func(Counts) bool) error {
	for {
		e.mu.Lock()
		done, changed := enough(e.counts), e.changed
		e.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return fmt.Errorf("the stand-in: %w", ctx.Err())
		}
	}
}

func (e *Engine) pause() { e.set(func() { e.paused = true; e.counts.Pauses++ }) }

func (e *Engine) resume() { e.set(func() { e.paused = false }) }

func (e *Engine) setLabel(label string) {
	e.set(func() {
		e.label = label
		if !e.paused {
			e.counts.Unpaused++
		}
	})
}

func (e *Engine) labelled() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.label
}

// load reads model.safetensors in a folder. Real servers do not look at its config.json either.
func (e *Engine) load(folder string) error {
	data, err := os.ReadFile(filepath.Join(folder, "model.safetensors"))
	if err != nil {
		return err
	}
	params, err := lm.ReadSafetensors(data)
	if err != nil {
		return err
	}
	m := e.base.Clone()
	if err := m.Load(params); err != nil {
		return err
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	defer e.broadcast()
	if !e.paused {
		e.counts.Unpaused++
	}
	if e.refuse > 0 {
		e.refuse--
		e.counts.Refused++
		if e.spoil {
			e.model, e.weights = m, e.weights+1
		}
		return errors.New("out of memory, says the stand-in")
	}
	e.model = m
	e.weights++
	e.counts.Loads++
	return nil
}

// Generate samples a completion. A request over which the weights change is computed again from its beginning.
func (e *Engine) Generate(ctx context.Context, r Request) (Completion, error) {
	e.mu.Lock()
	e.counts.Asked++
	e.broadcast()
	model, weights, abort := e.model, -1, e.abort
	e.mu.Unlock()
	longest := model.Config().MaxPositionEmbeddings
	if len(r.Prompt)+r.MaxTokens > longest || r.MaxTokens < 1 || len(r.Prompt) == 0 {
		return Completion{}, fmt.Errorf("prompt of %d tokens and %d new ones: the model has %d positions", len(r.Prompt), r.MaxTokens, longest)
	}
	var c Completion
	var d *lm.Decoder
	var sampler lm.Sampler
	rng := lm.NewRNG(uint64(r.Seed))
	pending := r.Prompt
	for c.Finish == "" {
		if !e.turn(ctx, abort, len(c.Tokens)) {
			c.Finish = "abort"
			break
		}
		if weights != e.weights {
			pending, weights = append(slices.Clone(r.Prompt), c.Tokens...), e.weights
			var err error
			if d, err = lm.NewDecoder(e.model, 1, longest); err == nil {
				d.Acquire()
			} else {
				e.mu.Unlock()
				return c, err
			}
		}
		err := e.sample(&c, d, pending, r, func(logits []float32) (int32, float32, []lm.TokenLogProb) {
			token, logprob := sampler.Sample(logits, float32(r.Temperature), 1, rng)
			var top []lm.TokenLogProb
			if r.Top > 0 {
				top = sampler.Top(logits, r.Top)
			}
			if e.raw {
				logprob = rawLogprob(logits, token)
				for i := range top {
					top[i].LogProb = rawLogprob(logits, top[i].Token)
				}
			}
			return token, logprob, top
		})
		e.broadcast()
		e.mu.Unlock()
		if err != nil {
			return c, err
		}
		pending = c.Tokens[len(c.Tokens)-1:]
	}
	return c, nil
}

// turn waits until a request with n tokens may sample another, and returns with the lock held; or false without.
func (e *Engine) turn(ctx context.Context, abort chan struct{}, n int) bool {
	for {
		e.mu.Lock()
		if ctx.Err() == nil && !closed(abort) && !e.paused && (e.gate < 0 || n < e.gate) {
			return true
		}
		changed := e.changed
		e.mu.Unlock()
		select {
		case <-changed:
		case <-abort:
			return false
		case <-ctx.Done():
			return false
		}
	}
}

func closed(c chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// sample appends a token. The lock is held.
func (e *Engine) sample(c *Completion, d *lm.Decoder, pending []int32, r Request, draw func([]float32) (int32, float32, []lm.TokenLogProb)) error {
	logits, err := d.Step([]lm.Chunk{{Slot: 0, Tokens: pending}})
	if err != nil {
		return err
	}
	token, logprob, top := draw(logits)
	n := len(c.Tokens)
	if len(c.Spans) == 0 || c.Spans[len(c.Spans)-1].Version != e.label {
		c.Spans = append(c.Spans, Span{Version: e.label, Start: n, End: n})
	}
	c.Spans[len(c.Spans)-1].End = n + 1
	c.Tokens, c.Logprobs, c.Top = append(c.Tokens, token), append(c.Logprobs, logprob), append(c.Top, top)
	e.counts.Tokens++
	e.counts.Prefills += len(pending) - 1
	switch {
	case slices.Contains(r.Stop, token):
		c.Finish = "stop"
	case n+1 == r.MaxTokens:
		c.Finish = "length"
	}
	return nil
}

func rawLogprob(logits []float32, token int32) float32 {
	sum := 0.0
	for _, l := range logits {
		sum += math.Exp(float64(l - logits[token]))
	}
	return float32(-math.Log(sum))
}

// prompt gives the log-probabilities of the tokens of a prompt at temperature 1, and the label they are of.
func (e *Engine) prompt(tokens []int32) ([]float32, string, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.counts.Asked++
	e.broadcast()
	mask := slices.Repeat([]byte{1}, len(tokens))
	mask[0] = 0
	logprobs, _, err := lm.NewLearner(e.model).Score(&lm.Batch{
		Tokens: tokens, Mask: mask, SeqLens: []int32{int32(len(tokens))}, Temperatures: slices.Repeat([]float32{1}, len(tokens)),
	})
	return slices.Clone(logprobs), e.label, err
}
