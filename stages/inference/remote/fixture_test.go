package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/standin"
)

// makes are the servers whose weights change. Every test of what they have in common runs with each.
var makes = []struct {
	backend string
	start   func(testing.TB, *lm.Model) *standin.Server
}{
	{inference.BackendVLLM, standin.NewVLLM},
	{inference.BackendSGLang, standin.NewSGLang},
}

// each runs a test with every make.
func each(t *testing.T, test func(t *testing.T, backend string, start func(testing.TB, *lm.Model) *standin.Server)) {
	for _, m := range makes {
		t.Run(m.backend, func(t *testing.T) { test(t, m.backend, m.start) })
	}
}

// model is a small one whose weights differ by seed; they are large, so that tokens vary.
func model(t testing.TB, seed uint64) (*lm.Model, *lm.Tokenizer) {
	t.Helper()
	tok, err := lm.NewTokenizer("abcdefghijklmnopqrstuvwxyz 0123456789")
	if err != nil {
		t.Fatal(err)
	}
	cfg := lm.NewConfig(tok.VocabSize(), 16, 2, 2, 1, 32, 96)
	cfg.InitializerRange = 0.5
	m, err := lm.New(cfg, seed+1)
	if err != nil {
		t.Fatal(err)
	}
	return m, tok
}

// base is what the stand-ins are started with: no version.
func base(t testing.TB) *lm.Model {
	t.Helper()
	m, _ := model(t, 1000)
	return m
}

func policy(t testing.TB, version int64) inference.Policy {
	t.Helper()
	m, tok := model(t, uint64(version))
	var weights bytes.Buffer
	if err := lm.WriteSafetensors(&weights, m.Params()); err != nil {
		t.Fatal(err)
	}
	cfg, err := json.Marshal(m.Config())
	if err != nil {
		t.Fatal(err)
	}
	tokens, err := json.Marshal(tok)
	if err != nil {
		t.Fatal(err)
	}
	return inference.Policy{Version: version, Weights: weights.Bytes(), Config: cfg, Tokenizer: tokens}
}

// config looks at servers often, so that nothing waits for that; a test of what happens between two looks has them seldom.
func config(backend string, urls ...string) inference.Config {
	c := inference.DefaultConfig()
	c.Backend, c.URLs, c.MaxModelLen = backend, urls, 64
	c.Remote.HealthInterval = pipeline.Duration(10 * time.Millisecond)
	return c
}

const seldom = pipeline.Duration(time.Hour)

// run is a backend that runs until the test ends, with its weights in a folder of its own.
func run(t testing.TB, cfg inference.Config) *Backend {
	t.Helper()
	return runIn(t, cfg, t.TempDir())
}

func runIn(t testing.TB, cfg inference.Config, dir string) *Backend {
	t.Helper()
	return runWith(t, runtime(t), cfg, dir)
}

func runWith(t testing.TB, rt *pipeline.Runtime, cfg inference.Config, dir string) *Backend {
	t.Helper()
	b, err := New(rt, cfg, dir)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return b
}

func runtime(t testing.TB) *pipeline.Runtime {
	t.Helper()
	cfg := pipeline.DefaultRunConfig()
	cfg.Name, cfg.SeqLen = "test", 64
	return &pipeline.Runtime{Run: cfg, Instance: "one", Log: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

// soon is a context with a generous deadline.
func soon(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func load(t testing.TB, b *Backend, version int64) {
	t.Helper()
	if err := b.Load(soon(t), policy(t, version)); err != nil {
		t.Fatalf("load version %d: %v", version, err)
	}
}

// request has a prompt of its own for each n.
func request(n int32, tokens int) inference.Request {
	return inference.Request{Tokens: []int32{5, 9 + n, 12, 7 + n}, MaxTokens: tokens, Temperature: 0.8, Seed: int64(n) + 7}
}

// result is what a request came to.
type result struct {
	inference.Completion
	err error
}

// begin sends a request and does not wait for it.
func begin(t testing.TB, b *Backend, r inference.Request) <-chan result {
	t.Helper()
	ctx, done := soon(t), make(chan result, 1)
	go func() {
		c, err := b.Generate(ctx, r)
		done <- result{c, err}
	}()
	return done
}

// ask sends a request and holds the answer to what versions it says.
func ask(t testing.TB, b *Backend, r inference.Request) inference.Completion {
	t.Helper()
	c, err := b.Generate(soon(t), r)
	if err != nil {
		t.Fatal(err)
	}
	check(t, r, c)
	return c
}

// check holds every log-probability to the model of the version that the token is said to be of.
func check(t testing.TB, r inference.Request, c inference.Completion) {
	t.Helper()
	if len(c.Tokens) != len(c.Logprobs) || len(c.Tokens) == 0 || len(c.Versions) == 0 || c.Versions[0].Offset != 0 {
		t.Fatalf("a completion of %d tokens, %d log-probabilities, versions %v", len(c.Tokens), len(c.Logprobs), c.Versions)
	}
	for i, v := range c.Versions {
		to := len(c.Tokens)
		if i+1 < len(c.Versions) {
			to = c.Versions[i+1].Offset
		}
		want := scores(t, v.Version, r.Tokens, c.Tokens, r.Temperature)
		for k := v.Offset; k < to; k++ {
			if d := math.Abs(float64(want[k] - c.Logprobs[k])); d > 1e-4 {
				t.Errorf("token %d is said to be of version %d: its log-probability is %g there, not %g", k, v.Version, want[k], c.Logprobs[k])
			}
		}
	}
}

// scores are the log-probabilities of an answer under a version.
func scores(t testing.TB, version int64, prompt, answer []int32, temperature float64) []float32 {
	t.Helper()
	m, _ := model(t, uint64(version))
	all := append(append([]int32{}, prompt...), answer...)
	b := lm.Batch{Tokens: all, Mask: make([]byte, len(all)), SeqLens: []int32{int32(len(all))}}
	for i := range all {
		b.Temperatures = append(b.Temperatures, float32(temperature))
		if i >= len(prompt) {
			b.Mask[i] = 1
		}
	}
	logprobs, _, err := lm.NewLearner(m).Score(&b)
	if err != nil {
		t.Fatal(err)
	}
	return append([]float32{}, logprobs[len(prompt):]...)
}

// by asserts which versions sampled.
func by(t testing.TB, c inference.Completion, want ...schemas.VersionRun) {
	t.Helper()
	if len(c.Versions) != len(want) {
		t.Fatalf("versions %v, want %v", c.Versions, want)
	}
	for i := range want {
		if c.Versions[i] != want[i] {
			t.Fatalf("versions %v, want %v", c.Versions, want)
		}
	}
}

func from(offset int, version int64) schemas.VersionRun {
	return schemas.VersionRun{Offset: offset, Version: version}
}

// happened waits for something at a stand-in.
func happened(t testing.TB, s *standin.Server, enough func(standin.Counts) bool) {
	t.Helper()
	if err := s.Wait(soon(t), enough); err != nil {
		t.Fatal(err)
	}
}

// became waits for something about the servers.
func became(t testing.TB, f *fleet, what string, done func() bool) {
	t.Helper()
	if err := f.wait(soon(t), time.Minute, func() (bool, error) { return done(), nil }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

func pin(v int64) *int64 { return &v }

// coded says whether an error is one of the stage's, with a code.
func coded(err error, code string) bool {
	var e *inference.Error
	return errors.As(err, &e) && e.Code == code
}

// ownerOf is the server that a conversation belongs to, and the other one.
func ownerOf(b *Backend, r inference.Request, both []*standin.Server) (own, other *standin.Server) {
	key := b.home.routes.key(r.Tokens)
	b.home.mu.Lock()
	defer b.home.mu.Unlock()
	if choose(key, b.home.servers, b.home.cfg.Overload) == b.home.servers[0] {
		return both[0], both[1]
	}
	return both[1], both[0]
}
