package inference

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prl-project/prl/stages/internal/lm"
)

// randomRequest varies everything that a request can say but the pin.
func randomRequest(rng *rand.Rand, vocab int) Request {
	r := Request{
		Tokens: make([]int32, 1+rng.IntN(40)), MaxTokens: rng.IntN(30), Seed: rng.Int64(),
		Temperature: []float64{0, 0.5, 1, 1.7}[rng.IntN(4)], TopP: []float64{0, 1, 0.8}[rng.IntN(3)],
	}
	for i := range r.Tokens {
		r.Tokens[i] = int32(i % 5) // the beginning is shared
		if i > 6 {
			r.Tokens[i] = int32(rng.IntN(vocab))
		}
	}
	if rng.IntN(2) == 0 {
		r.StopTokens = []int32{int32(rng.IntN(vocab)), int32(rng.IntN(vocab)), int32(rng.IntN(vocab))}
	}
	return r
}

func TestInvariant_BatchInvariance(t *testing.T) {
	cfg := testConfig()
	cfg.Slots, cfg.StepTokens = 24, 17 // fewer slots than requests, prompts in pieces
	n := newNative(cfg)
	models := map[int64]*lm.Model{}
	for _, v := range []int64{2, 0, 1} { // an older one that is loaded later does not become the newest
		m, tok := testModel(t, v)
		models[v] = m
		if err := n.Load(t.Context(), policyOf(t, v, m, tok)); err != nil {
			t.Fatal(err)
		}
	}
	runBackend(t, n)
	rng := rand.New(rand.NewPCG(1, 2))
	vocab := models[0].Config().VocabSize
	var wg sync.WaitGroup
	for range 64 {
		r := randomRequest(rng, vocab)
		version := int64(2)
		if rng.IntN(2) == 0 {
			version = rng.Int64N(3)
			r.PinVersion = pin(version)
		}
		more := randomRequest(rng, vocab).Tokens[:1]
		wg.Go(func() {
			// Two turns: the second goes on where the first ended.
			for turn := range 2 {
				got, err := n.Generate(t.Context(), r)
				if err != nil {
					t.Error(err)
					return
				}
				sameBits(t, "among others", got, alone(t, r, cfg.MaxModelLen, []*lm.Model{models[version]}, []int64{version}, []int{0}))
				r.Tokens = slices.Concat(r.Tokens, got.Tokens, more)
				if turn == 0 && len(r.Tokens) >= cfg.MaxModelLen {
					return
				}
			}
		})
	}
	wg.Wait()
}

// step drives a backend by hand; it returns the batch of the versions.
func step(t testing.TB, n *native) *batch {
	t.Helper()
	lanes, err := n.admit()
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range lanes {
		l.batch.step()
	}
	return n.lane.batch
}

func TestInvariant_SwapBetweenTokens(t *testing.T) {
	n := newNative(testConfig())
	m0, tok := testModel(t, 0)
	m1, _ := testModel(t, 1)
	if err := n.Load(t.Context(), policyOf(t, 0, m0, tok)); err != nil {
		t.Fatal(err)
	}
	free := Request{Tokens: []int32{5, 10, 11, 12}, MaxTokens: 12, Temperature: 1, Seed: 3}
	fixed := free
	fixed.PinVersion = pin(0)
	follows, err := n.enqueue(t.Context(), free)
	if err != nil {
		t.Fatal(err)
	}
	stays, err := n.enqueue(t.Context(), fixed)
	if err != nil {
		t.Fatal(err)
	}
	var b *batch
	for range 5 {
		b = step(t, n)
	}
	if err := n.Load(t.Context(), policyOf(t, 1, m1, tok)); err != nil {
		t.Fatal(err)
	}
	n.Unload(0) // what runs keeps its weights
	for len(b.running) > 0 {
		b = step(t, n)
	}
	models := []*lm.Model{m0, m1}
	sameBits(t, "without a pin", (<-follows.done).completion, alone(t, free, n.lane.maxLen, models, []int64{0, 1}, []int{0, 5}))
	sameBits(t, "pinned", (<-stays.done).completion, alone(t, fixed, n.lane.maxLen, models[:1], []int64{0}, []int{0}))

	// The slot that lived through the swap serves nobody's prefix; the other one would, for version 0.
	mixedOnes := 0
	for _, h := range b.slots.held {
		if h.model == mixed {
			mixedOnes++
		}
	}
	if mixedOnes != 1 {
		t.Errorf("%d slots are marked as mixed, want 1", mixedOnes)
	}
}

func TestContinuedConversationIsNotComputedAgain(t *testing.T) {
	n := newNative(testConfig())
	if err := n.Load(t.Context(), testPolicy(t, 0)); err != nil {
		t.Fatal(err)
	}
	first := Request{Tokens: []int32{5, 10, 11, 12, 13, 14}, MaxTokens: 4, Temperature: 1}
	s, err := n.enqueue(t.Context(), first)
	if err != nil {
		t.Fatal(err)
	}
	var b *batch
	for b == nil || len(b.running) > 0 {
		b = step(t, n)
	}
	done := <-s.done
	second := first
	second.Tokens = slices.Concat(first.Tokens, done.completion.Tokens, []int32{7, 8})
	if s, err = n.enqueue(t.Context(), second); err != nil {
		t.Fatal(err)
	}
	b.admit(&n.lane.lines)
	if got, want := len(s.pending), 3; got != want || s.out.Cached != len(second.Tokens)-want { // the token sampled last, which was never an input, and two new ones
		t.Errorf("%d tokens are computed, want %d", got, want)
	}
}

func TestCancellationFreesTheSlot(t *testing.T) {
	cfg := testConfig()
	cfg.Slots = 1
	n := newNative(cfg)
	if err := n.Load(t.Context(), testPolicy(t, 0)); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	running, err := n.enqueue(ctx, Request{Tokens: []int32{1}, Temperature: 1})
	if err != nil {
		t.Fatal(err)
	}
	gone, err := n.enqueue(ctx, Request{Tokens: []int32{3}, Temperature: 1})
	if err != nil {
		t.Fatal(err)
	}
	next, err := n.enqueue(t.Context(), Request{Tokens: []int32{2}, MaxTokens: 1, Temperature: 1})
	if err != nil {
		t.Fatal(err)
	}
	b := step(t, n)
	if len(b.running) != 1 || b.running[0] != running {
		t.Fatal("the first request does not run")
	}
	cancel()
	step(t, n)
	select {
	case <-next.done:
	default:
		t.Error("the slot of the cancelled request was not given to the one that waits")
	}
	if n.lane.lines.first() != nil || len(gone.done) != 0 {
		t.Error("a cancelled request still waits")
	}
	if _, err := n.Generate(ctx, Request{Tokens: []int32{1}}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want that the context has ended", err)
	}
}

func TestNativeRefuses(t *testing.T) {
	n := newNative(testConfig())
	if err := n.Load(t.Context(), testPolicy(t, 0)); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		request Request
		code    string
	}{
		"a prompt as long as the context": {Request{Tokens: make([]int32, 64)}, CodeTooLong},
		"a token outside the vocabulary":  {Request{Tokens: []int32{1, 10_000}}, CodeInvalid},
		"a version that is not loaded":    {Request{Tokens: []int32{1}, PinVersion: pin(5)}, CodeInternal},
	} {
		var e *Error
		if _, err := n.enqueue(t.Context(), c.request); !errors.As(err, &e) || e.Code != c.code {
			t.Errorf("%s: got %v, want %s", name, err, c.code)
		}
	}
}

func TestLoadRefusesWhatDoesNotFit(t *testing.T) {
	n := newNative(testConfig())
	if err := n.Load(t.Context(), testPolicy(t, 0)); err != nil {
		t.Fatal(err)
	}
	m, tok := testModel(t, 1)
	cfg := m.Config()
	cfg.HiddenSize = 32
	big, err := lm.New(cfg, 1)
	if err != nil {
		t.Fatal(err)
	}
	wider := policyOf(t, 1, big, tok)
	short := testPolicy(t, 1)
	short.Weights = short.Weights[:len(short.Weights)-4]
	for what, c := range map[string]struct {
		policy Policy
		want   string
	}{
		"another shape": {wider, "the versions before"},
		"cut weights":   {short, ""},
	} {
		if err := n.Load(t.Context(), c.policy); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v", what, err)
		}
	}
	if n.newest != 0 {
		t.Errorf("version %d serves", n.newest)
	}
}

func TestStopFailsWhatIsLeft(t *testing.T) {
	n := newNative(testConfig())
	ctx, cancel := context.WithCancel(t.Context())
	if err := n.Load(ctx, testPolicy(t, 0)); err != nil {
		t.Fatal(err)
	}
	s, err := n.enqueue(t.Context(), Request{Tokens: []int32{1}, Temperature: 1})
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if err := n.Run(ctx); err != nil {
		t.Fatal(err)
	}
	if got := (<-s.done).err; got != error(errStopping) {
		t.Errorf("got %v", got)
	}
	if _, err := n.Generate(t.Context(), Request{Tokens: []int32{1}}); err != error(errStopping) {
		t.Errorf("got %v", err)
	}
}
