package remote

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/standin"
)

// TestProbe: log-probabilities of given tokens are those of the version that is asked; at other temperatures there are none,
// and of other versions neither.
func TestProbe(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		b := run(t, config(backend, start(t, base(t)).URL))
		load(t, b, 0)
		load(t, b, 1)
		p := inference.Probe{Tokens: []int32{3, 9, 12, 4, 8, 20}, Mask: []byte{0, 0, 1, 1, 0, 0}, Temperature: 1, PinVersion: pin(1)}
		got, err := b.Probe(soon(t), p)
		if err != nil {
			t.Fatal(err)
		}
		want := scores(t, 1, p.Tokens[:2], p.Tokens[2:4], 1)
		for i, l := range []float32{0, 0, want[0], want[1], 0, 0} {
			if math.Abs(float64(got[i]-l)) > 1e-5 {
				t.Errorf("log-probability %d is %g, want %g", i, got[i], l)
			}
		}
		p.Temperature = 0.7
		if _, err := b.Probe(soon(t), p); !coded(err, inference.CodeUnsupported) {
			t.Errorf("at temperature 0.7: %v", err)
		}
		p.Temperature, p.PinVersion = 1, pin(0)
		if _, err := b.Probe(soon(t), p); !coded(err, inference.CodeNoVersion) {
			t.Errorf("of version 0: %v", err)
		}
	})
}

// TestPins: without servers set aside only the version that is held can be asked.
func TestPins(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		cfg := config(backend, s.URL)
		b := run(t, cfg)
		load(t, b, 0)
		r := request(1, 6)
		r.PinVersion = pin(0)
		by(t, ask(t, b, r), from(0, 0))
		before := s.Counts().Tokens
		s.Gate(3)
		done := begin(t, b, r)
		happened(t, s, func(c standin.Counts) bool { return c.Tokens >= before+3 })
		load(t, b, 1)
		s.Gate(-1)
		if c := <-done; !coded(c.err, inference.CodeNoVersion) || inference.Retryable(c.err) {
			t.Errorf("a pinned request over which the weights changed: %v, %v", c.Versions, c.err)
		}
		if _, err := b.Generate(soon(t), r); !coded(err, inference.CodeNoVersion) {
			t.Errorf("a version that is gone: %v", err)
		}
		if err := b.Load(soon(t), policy(t, 0)); !coded(err, inference.CodeNoVersion) {
			t.Errorf("loading it: %v", err)
		}
	})
}

// TestServersSetAside: pinned requests are answered by their version while others get the newest, and the servers set aside
// change when the last that needs a version is done.
func TestServersSetAside(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		home, aside := start(t, base(t)), start(t, base(t))
		cfg := config(backend, home.URL)
		cfg.Remote.EvalURLs = []string{aside.URL}
		b := run(t, cfg)
		for version := range int64(3) {
			load(t, b, version)
		}
		r := request(1, 4)
		r.PinVersion = pin(1)
		by(t, ask(t, b, r), from(0, 1))
		by(t, ask(t, b, request(1, 4)), from(0, 2))
		before := aside.Counts()
		aside.Gate(2)
		slow := begin(t, b, r)
		happened(t, aside, func(c standin.Counts) bool { return c.Tokens == before.Tokens+2 })
		r.PinVersion = pin(0)
		next := begin(t, b, r)
		for n := range int32(20) {
			by(t, ask(t, b, request(n, 4)), from(0, 2))
		}
		if n := aside.Counts().Pauses; n != before.Pauses {
			t.Errorf("the server set aside was changed with a request in flight")
		}
		aside.Gate(-1)
		for want, done := range map[int64]<-chan result{1: slow, 0: next} {
			c := <-done
			if c.err != nil {
				t.Fatal(c.err)
			}
			by(t, c.Completion, from(0, want))
		}
		if n := home.Counts().Loads; n != 3 {
			t.Errorf("the server at home loaded %d times", n)
		}
		// A version that is given up is not loaded by a server that comes back.
		b.Unload(0)
		if _, err := b.Generate(soon(t), r); err == nil {
			t.Error("a version that was given up was served")
		}
		load(t, b, 0) // an older version does not go to the servers at home
		r.PinVersion = pin(0)
		by(t, ask(t, b, r), from(0, 0))
		by(t, ask(t, b, request(1, 4)), from(0, 2))
	})
}

// TestALoadThatSpoils: a server that was given a version in vain, and whose weights are nobody's since, is given the one before
// again although it never said that it had lost it.
func TestALoadThatSpoils(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		aside := start(t, base(t))
		cfg := config(backend, start(t, base(t)).URL)
		cfg.Remote.EvalURLs, cfg.Remote.Patience = []string{aside.URL}, pipeline.Duration(50*time.Millisecond)
		b := run(t, cfg)
		load(t, b, 0)
		load(t, b, 1)
		r := request(1, 3)
		r.PinVersion = pin(0)
		ask(t, b, r)
		aside.RefuseLoads(1000, true)
		r.PinVersion = pin(1)
		if _, err := b.Generate(soon(t), r); !coded(err, inference.CodeOverloaded) || aside.Counts().Refused == 0 {
			t.Fatalf("a version that cannot be loaded: %v; %d refused loads", err, aside.Counts().Refused)
		}
		aside.RefuseLoads(0, false)
		r.PinVersion = pin(0)
		ctx := soon(t)
		c, err := b.Generate(ctx, r)
		for inference.Retryable(err) && ctx.Err() == nil { // the server may have been asked to load the other once more
			c, err = b.Generate(ctx, r)
		}
		if err != nil {
			t.Fatal(err)
		}
		check(t, r, c)
		by(t, c, from(0, 0))
	})
}

// TestWhatTheCallerDidWrong is told to the caller and not tried elsewhere; a caller who leaves is no fault of the server.
func TestWhatTheCallerDidWrong(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		b := run(t, config(backend, s.URL))
		load(t, b, 0)
		asked := s.Counts().Asked
		if _, err := b.Generate(soon(t), inference.Request{Tokens: []int32{5000}, MaxTokens: 1, Temperature: 1}); !coded(err, inference.CodeInvalid) {
			t.Errorf("a token outside the vocabulary: %v", err)
		}
		if n := s.Counts().Asked - asked; n != 1 {
			t.Errorf("sent %d times", n)
		}
		s.Gate(0)
		ctx, leave := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() {
			_, err := b.Generate(ctx, request(1, 2))
			done <- err
		}()
		happened(t, s, func(c standin.Counts) bool { return c.Asked == asked+2 })
		leave()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("a caller who left: %v", err)
		}
		b.home.mu.Lock()
		defer b.home.mu.Unlock()
		if is := b.home.servers[0].state; is != ready {
			t.Errorf("the server is in state %d after that", is)
		}
	})
}

// TestTemperaturesOfVLLM: what vLLM would refuse is refused with the reason.
func TestTemperaturesOfVLLM(t *testing.T) {
	b := run(t, config(inference.BackendVLLM, standin.NewVLLM(t, base(t)).URL))
	load(t, b, 0)
	r := request(1, 2)
	r.Temperature = 3
	if _, err := b.Generate(soon(t), r); !coded(err, inference.CodeInvalid) {
		t.Error(err)
	}
}

// TestAnEndThatNobodyAskedFor: SGLang heeds the end of sequence wherever it heeds stop tokens. A completion that ends there,
// though the request does not name it, is not passed on as one that stopped as it should.
func TestAnEndThatNobodyAskedFor(t *testing.T) {
	b := run(t, config(inference.BackendSGLang, standin.NewSGLang(t, base(t)).URL))
	load(t, b, 0)
	ended := 0
	for n := range int32(20) {
		r := request(n, 30)
		r.StopTokens, r.Temperature = []int32{0}, 5 // padding; every token is to come up
		c, err := b.Generate(soon(t), r)
		switch {
		case coded(err, inference.CodeUnusable):
			ended++
		case err != nil:
			t.Fatal(err)
		default:
			check(t, r, c)
		}
	}
	if ended == 0 {
		t.Error("no completion came to the end of sequence")
	}
}
