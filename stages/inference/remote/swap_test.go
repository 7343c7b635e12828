package remote

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/standin"
)

// TestServesWhatItIsGiven: tokens, log-probabilities and versions are those of the version that was loaded last, not of the
// model that the server was started with.
func TestServesWhatItIsGiven(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		b := run(t, config(backend, s.URL))
		for version := range int64(3) {
			load(t, b, version)
			r := request(int32(version), 6)
			r.TopLogprobs = 3
			c := ask(t, b, r)
			by(t, c, from(0, version))
			if len(c.Top) != len(c.Tokens) || len(c.Top[0]) != 3 {
				t.Fatalf("%d lists of the most probable tokens, the first of %d", len(c.Top), len(c.Top[0]))
			}
			for i, top := range c.Top {
				if top[0].Logprob < top[1].Logprob || top[1].Logprob < top[2].Logprob || top[0].Logprob < c.Logprobs[i]-1e-6 {
					t.Errorf("place %d: %v beside a token of %g", i, top, c.Logprobs[i])
				}
			}
		}
		if n := s.Counts().Loads; n != 3 {
			t.Errorf("%d loads for 3 versions", n)
		}
		if completed, probed := b.Limits(""); completed != 64 || probed != 63 {
			t.Errorf("limits %d and %d, the configuration says 64", completed, probed)
		}
		if _, err := b.Generate(soon(t), inference.Request{Tokens: make([]int32, 64), Temperature: 1}); !coded(err, inference.CodeTooLong) {
			t.Errorf("a prompt as long as the context: %v", err)
		}
	})
}

// TestEndsAtStopTokens: what ends a completion is one of the request's stop tokens, and nothing else.
func TestEndsAtStopTokens(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		b := run(t, config(backend, start(t, base(t)).URL))
		load(t, b, 0)
		r := request(1, 12)
		free := ask(t, b, r)
		if len(free.Tokens) != 12 || free.FinishReason != inference.FinishLength {
			t.Fatalf("without stop tokens: %d tokens, finish %q", len(free.Tokens), free.FinishReason)
		}
		r.StopTokens = []int32{free.Tokens[4]}
		c := ask(t, b, r)
		if last := c.Tokens[len(c.Tokens)-1]; c.FinishReason != inference.FinishStop || last != free.Tokens[4] || len(c.Tokens) > 5 {
			t.Errorf("finish %q after %d tokens, the last is %d", c.FinishReason, len(c.Tokens), last)
		}
	})
}

// swapAmid gives a server version 1 after three of the eight tokens of a completion, and holds it to what each was sampled by.
func swapAmid(t *testing.T, s *standin.Server, b *Backend) {
	t.Helper()
	before := s.Counts().Tokens
	s.Gate(3)
	r := request(2, 8)
	done := begin(t, b, r)
	happened(t, s, func(c standin.Counts) bool { return c.Tokens >= before+3 })
	load(t, b, 1)
	s.Gate(-1)
	c := <-done
	if c.err != nil {
		t.Fatal(c.err)
	}
	check(t, r, c.Completion)
	by(t, c.Completion, from(0, 0), from(3, 1))
	if len(c.Tokens) != 8 {
		t.Errorf("%d tokens", len(c.Tokens))
	}
}

// TestInvariant_NoNewerLabel swaps weights in the middle of a completion: what was sampled before is of the old version, what
// comes after of the new one, with everything before it computed anew.
func TestInvariant_NoNewerLabel(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		cfg := config(backend, s.URL)
		b := run(t, cfg)
		load(t, b, 0)
		swapAmid(t, s, b)
	})
}

// TestFinishInFlight: with swap = "finish" a running request ends under its version before its server is given the next;
// others are answered meanwhile by the server that has it.
func TestFinishInFlight(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		both := []*standin.Server{start(t, base(t)), start(t, base(t))}
		cfg := config(backend, both[0].URL, both[1].URL)
		cfg.Remote.Swap = inference.SwapFinish
		b := run(t, cfg)
		load(t, b, 0)
		became(t, b.home, "both are ready", func() bool { return len(b.home.ready(nil)) == 2 })
		r := request(3, 8)
		own, other := ownerOf(b, r, both)
		before := own.Counts()
		own.Gate(3)
		old := begin(t, b, r)
		happened(t, own, func(c standin.Counts) bool { return c.Tokens >= before.Tokens+3 })
		load(t, b, 1)
		for n := range int32(10) {
			by(t, ask(t, b, request(n, 4)), from(0, 1))
		}
		if n := own.Counts().Pauses; n != before.Pauses || other.Counts().Loads != 2 {
			t.Fatalf("paused with a request in flight; the other server has loaded %d times", other.Counts().Loads)
		}
		own.Gate(-1)
		c := <-old
		if c.err != nil {
			t.Fatal(c.err)
		}
		check(t, r, c.Completion)
		by(t, c.Completion, from(0, 0))
		became(t, b.home, "both have the next", func() bool { return len(b.home.ready(nil)) == 2 })
		by(t, ask(t, b, r), from(0, 1))
	})
}

// TestFinishNotForEver: a request that does not end in time is kept over the change, and its tokens say so.
func TestFinishNotForEver(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		cfg := config(backend, s.URL)
		cfg.Remote.Swap = inference.SwapFinish
		cfg.Remote.DrainTimeout = pipeline.Duration(20 * time.Millisecond)
		b := run(t, cfg)
		load(t, b, 0)
		swapAmid(t, s, b)
	})
}

// TestAStageThatComesBack: a stage that is started again finds the version it needs on the server, and loads nothing; a server
// that was left in the middle of a load, by its label, is given the weights again, and goes on.
func TestAStageThatComesBack(t *testing.T) {
	each(t, func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server) {
		s := start(t, base(t))
		dir := t.TempDir()
		t.Run("first", func(t *testing.T) { load(t, runIn(t, config(backend, s.URL), dir), 4) })
		t.Run("again", func(t *testing.T) {
			b := runIn(t, config(backend, s.URL), dir)
			load(t, b, 4)
			ask(t, b, request(1, 2))
			if n := s.Counts().Loads; n != 1 {
				t.Errorf("%d loads", n)
			}
		})
		t.Run("after a load that was broken off", func(t *testing.T) {
			b, err := New(runtime(t), config(backend, s.URL), t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			server := b.home.servers[0]
			if err := b.home.make.pause(soon(t), server.client); err != nil {
				t.Fatal(err)
			}
			if err := b.home.make.relabel(soon(t), server.client, newLoadingLabel()); err != nil {
				t.Fatal(err)
			}
			again := runIn(t, config(backend, s.URL), dir)
			load(t, again, 4)
			by(t, ask(t, again, request(1, 2)), from(0, 4))
			if n := s.Counts().Loads; n != 2 {
				t.Errorf("%d loads", n)
			}
		})
	})
}

// TestFolders: a version is a whole Hugging Face folder under its name, what is not whole has another, and no more are kept
// than are loaded.
func TestFolders(t *testing.T) {
	dir := t.TempDir()
	leftover := filepath.Join(dir, temporary+"123")
	old := filepath.Join(dir, "v000001-aaaaaaaaaaaa")
	for _, d := range []string{leftover, old, filepath.Join(dir, "mine")} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	f := newFolders("test", dir, "/mnt/weights")
	first, err := f.put(policy(t, 2))
	if err != nil {
		t.Fatal(err)
	}
	second, err := f.put(policy(t, 3))
	if err != nil {
		t.Fatal(err)
	}
	if in := names(t, dir); len(in) != 3 || in[0] != "mine" {
		t.Fatalf("%v: want mine and two versions", in)
	}
	if filepath.Dir(first.folder) != "/mnt/weights" || first.label == second.label {
		t.Errorf("%+v, %+v", first, second)
	}
	if _, _, err := lm.LoadFolder(filepath.Join(dir, filepath.Base(second.folder))); err != nil {
		t.Error(err)
	}
	if err := f.remove(2); err != nil {
		t.Fatal(err)
	}
	if in := names(t, dir); len(in) != 2 || !strings.HasPrefix(in[1], "v000003-") {
		t.Errorf("%v after version 2 was removed", in)
	}
	// A new process trusts a folder only if its weights are the right ones.
	weights := filepath.Join(dir, filepath.Base(second.folder), "model.safetensors")
	if err := os.WriteFile(weights, []byte("cut off"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := newFolders("test", dir, "").put(policy(t, 3)); err != nil {
		t.Fatal(err)
	}
	if _, _, err := lm.LoadFolder(filepath.Dir(weights)); err != nil {
		t.Errorf("a folder that was cut off was taken for whole: %v", err)
	}
}

func names(t *testing.T, dir string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}
