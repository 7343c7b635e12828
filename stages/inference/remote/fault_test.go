package remote

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/standin"
)

// TestInvariant_RestartServesNothing: a server that was started anew, with the weights it was first started with, between
// two looks so that nobody saw it, serves nothing before it has been given the version again. What it answered is dropped.
func TestInvariant_RestartServesNothing(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		cfg := config(backend, s.URL)
		cfg.Remote.HealthInterval = seldom
		b := run(t, cfg)
		load(t, b, 2)
		r := request(1, 5)
		want := ask(t, b, r)
		s.Kill()
		s.Start()
		before := s.Counts()
		c := ask(t, b, r)
		by(t, c, from(0, 2))
		if !slices.Equal(c.Tokens, want.Tokens) {
			t.Errorf("tokens %v, before the restart %v", c.Tokens, want.Tokens)
		}
		after := s.Counts()
		if after.Loads != before.Loads+1 {
			t.Errorf("%d loads after the restart", after.Loads-before.Loads)
		}
	})
}

// TestRestartIsSeen: where no request comes, a look sees that a server lost its weights.
func TestRestartIsSeen(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		b := run(t, config(backend, s.URL))
		load(t, b, 2)
		s.Kill()
		s.Start()
		happened(t, s, func(c standin.Counts) bool { return c.Loads == 2 })
		by(t, ask(t, b, request(1, 2)), from(0, 2))
	})
}

// TestADeadServersRequest: what a server was answering when it died is answered by the other, with the same seed and so the
// same tokens, once.
func TestADeadServersRequest(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		both := []*standin.Server{start(t, base(t)), start(t, base(t))}
		cfg := config(backend, both[0].URL, both[1].URL)
		cfg.Remote.HealthInterval = seldom
		b := run(t, cfg)
		load(t, b, 0)
		became(t, b.home, "both are ready", func() bool { return len(b.home.ready(nil)) == 2 })
		r := request(1, 6)
		own, other := ownerOf(b, r, both)
		before := own.Counts().Tokens
		own.Gate(3)
		done := begin(t, b, r)
		happened(t, own, func(c standin.Counts) bool { return c.Tokens == before+3 })
		asked := other.Counts().Asked
		own.Kill()
		c := <-done
		if c.err != nil {
			t.Fatal(c.err)
		}
		check(t, r, c.Completion)
		by(t, c.Completion, from(0, 0))
		if n := other.Counts().Asked - asked; n != 1 || len(c.Tokens) != 6 {
			t.Errorf("the other server was asked %d times; %d tokens", n, len(c.Tokens))
		}
		// It comes back, and gets requests again when it holds the version.
		own.Gate(-1)
		own.Start()
		b.home.servers[0].doubt <- struct{}{}
		b.home.servers[1].doubt <- struct{}{}
		became(t, b.home, "it is back", func() bool { return len(b.home.ready(nil)) == 2 })
		asked = own.Counts().Asked
		ask(t, b, r)
		if n := own.Counts().Asked - asked; n != 1 {
			t.Errorf("the conversation did not go back to its server")
		}
	})
}

// TestAServerThatHangs is taken out by looks that get no reply, and its request goes to the other.
func TestAServerThatHangs(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		both := []*standin.Server{start(t, base(t)), start(t, base(t))}
		cfg := config(backend, both[0].URL, both[1].URL)
		cfg.Remote.HealthTimeout, cfg.Remote.HealthFailures = pipeline.Duration(500*time.Millisecond), 2
		b := run(t, cfg)
		load(t, b, 0)
		became(t, b.home, "both are ready", func() bool { return len(b.home.ready(nil)) == 2 })
		r := request(1, 6)
		own, _ := ownerOf(b, r, both)
		before := own.Counts().Tokens
		own.Gate(3)
		done := begin(t, b, r)
		happened(t, own, func(c standin.Counts) bool { return c.Tokens == before+3 })
		own.Hang(true)
		c := <-done
		if c.err != nil {
			t.Fatal(c.err)
		}
		check(t, r, c.Completion)
		if n := own.Counts().Hung; n < 2 {
			t.Errorf("%d looks got no reply, two were to", n)
		}
	})
}

// TestADeadEngine: a server that answers, but cannot work, gets no more requests, and the one that found out waits for it to be
// back.
func TestADeadEngine(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		cfg := config(backend, s.URL)
		b := run(t, cfg)
		load(t, b, 0)
		s.KillEngine()
		done := begin(t, b, request(1, 3))
		happened(t, s, func(c standin.Counts) bool { return c.Failed >= 6 })
		s.Kill()
		s.Start()
		c := <-done
		if c.err != nil {
			t.Fatal(c.err)
		}
		check(t, request(1, 3), c.Completion)
		by(t, c.Completion, from(0, 0))
	})
}

// TestNobodyIsLeft: a request that no server can answer fails in time, and says what is the matter with each.
func TestNobodyIsLeft(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		cfg := config(backend, s.URL)
		cfg.Remote.Patience = pipeline.Duration(100 * time.Millisecond)
		b := run(t, cfg)
		load(t, b, 0)
		s.Kill()
		_, err := b.Generate(soon(t), request(1, 2))
		if !coded(err, inference.CodeOverloaded) || !inference.Retryable(err) || !strings.Contains(err.Error(), s.URL) || !strings.Contains(err.Error(), "refused") {
			t.Errorf("%v: want that the policy cannot be asked, and why", err)
		}
	})
}

// TestARefusedLoad: a server that cannot load a version gets no requests, whether it has changed its weights or not, and the
// other does; it is tried again. With one server, Load waits for that.
func TestARefusedLoad(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		for _, spoil := range []bool{false, true} {
			both := []*standin.Server{start(t, base(t)), start(t, base(t))}
			cfg := config(backend, both[0].URL, both[1].URL)
			cfg.Remote.HealthInterval = seldom
			b := run(t, cfg)
			load(t, b, 0)
			became(t, b.home, "both are ready", func() bool { return len(b.home.ready(nil)) == 2 })
			both[0].RefuseLoads(1, spoil)
			load(t, b, 1)
			became(t, b.home, "one has it, one has refused", func() bool {
				return b.home.servers[0].state == down && len(b.home.ready(nil)) == 1
			})
			if n := both[0].Counts().Refused; n != 1 {
				t.Fatalf("%d refused loads", n)
			}
			asked := both[0].Counts().Asked
			for n := range int32(6) {
				by(t, ask(t, b, request(n, 2)), from(0, 1))
			}
			if n := both[0].Counts().Asked; n != asked {
				t.Errorf("the server that refused was asked %d times", n-asked)
			}
			b.home.servers[0].doubt <- struct{}{}
			became(t, b.home, "it was tried again", func() bool { return len(b.home.ready(nil)) == 2 })
		}
		s := start(t, base(t))
		cfg := config(backend, s.URL)
		cfg.Remote.HealthInterval = seldom
		b := run(t, cfg)
		s.RefuseLoads(1, false)
		loaded := make(chan error, 1)
		go func() { loaded <- b.Load(soon(t), policy(t, 0)) }()
		happened(t, s, func(c standin.Counts) bool { return c.Refused == 1 })
		became(t, b.home, "it is out", func() bool { return b.home.servers[0].state == down })
		b.home.mu.Lock()
		err := b.home.states()
		b.home.mu.Unlock()
		if !strings.Contains(err.Error(), "out of memory, says the stand-in") || !strings.Contains(err.Error(), "inference.remote.dir") {
			t.Errorf("%v: want what the server said", err)
		}
		b.home.servers[0].doubt <- struct{}{}
		if err := <-loaded; err != nil {
			t.Errorf("after the second try: %v", err)
		}
	})
}

// TestAVersionThatNobodyTook leaves no folder once a newer one is there.
func TestAVersionThatNobodyTook(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		dir := t.TempDir()
		cfg := config(backend, s.URL)
		cfg.Remote.LoadTimeout, cfg.Remote.HealthTimeout = pipeline.Duration(time.Millisecond), pipeline.Duration(200*time.Millisecond)
		b := runIn(t, cfg, dir)
		s.Hang(true)
		if err := b.Load(soon(t), policy(t, 0)); err == nil || !strings.Contains(err.Error(), s.URL) || s.Counts().Hung == 0 {
			t.Fatalf("a server that hangs: %v", err)
		}
		s.Kill()
		if err := b.Load(soon(t), policy(t, 1)); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Fatalf("a server that is not there: %v", err)
		}
		if in := names(t, filepath.Join(dir, "test-one")); len(in) != 1 || !strings.HasPrefix(in[0], "v000001-") {
			t.Errorf("folders %v", in)
		}
	})
}

// TestARefusedLoadLosesNothing: requests that are kept over a load that fails are answered all the same, elsewhere.
func TestARefusedLoadLosesNothing(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		cfg := config(backend, s.URL)
		b := run(t, cfg)
		load(t, b, 0)
		before := s.Counts().Tokens
		s.Gate(3)
		r := request(2, 8)
		done := begin(t, b, r)
		happened(t, s, func(c standin.Counts) bool { return c.Tokens >= before+3 })
		s.RefuseLoads(1, true)
		s.Gate(-1)
		load(t, b, 1) // the second try
		if n := s.Counts().Refused; n != 1 {
			t.Fatalf("%d refused loads", n)
		}
		c := <-done
		if c.err != nil {
			t.Fatal(c.err)
		}
		check(t, r, c.Completion)
	})
}

// TestInvariant_AfterTemperature: a server that gives log-probabilities before temperature is not used, and the error says what
// to set there.
func TestInvariant_AfterTemperature(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		s.Raw()
		cfg := config(backend, s.URL)
		b := run(t, cfg)
		err := b.Load(soon(t), policy(t, 0))
		want := map[string]string{inference.BackendVLLM: "--logprobs-mode processed_logprobs", inference.BackendSGLang: "SGLANG_RETURN_ORIGINAL_LOGPROB"}[backend]
		if !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "before temperature") || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %s", err, want)
		}
	})
}

// TestStop: what runs when the stage ends, and what comes after, is told so.
func TestStop(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		b, err := New(runtime(t), config(backend, s.URL), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- b.Run(ctx) }()
		load(t, b, 0)
		asked := s.Counts().Asked
		s.Gate(0)
		done := begin(t, b, request(1, 2))
		happened(t, s, func(c standin.Counts) bool { return c.Asked > asked })
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if c := <-done; !coded(c.err, inference.CodeStopping) {
			t.Errorf("a running request: %v", c.err)
		}
		if _, err := b.Generate(soon(t), request(1, 2)); !coded(err, inference.CodeStopping) {
			t.Errorf("a later request: %v", err)
		}
	})
}

// TestWithoutDevMode: vLLM has no endpoints for weights unless it is told to, and the error says how.
func TestWithoutDevMode(t *testing.T) {
	s := standin.NewVLLMWithoutDevMode(t, base(t))
	b := run(t, config(inference.BackendVLLM, s.URL))
	if err := b.Load(soon(t), policy(t, 0)); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "VLLM_SERVER_DEV_MODE=1") {
		t.Errorf("%v", err)
	}
}
