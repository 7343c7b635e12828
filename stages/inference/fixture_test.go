package inference

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"math"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference/render"
	"github.com/prl-project/prl/stages/internal/lm"
)

const alphabet = "abcdefghijklmnopqrstuvwxyz 0123456789"

// testModel is a small model whose weights differ by version; they are large, so that tokens vary.
func testModel(t testing.TB, version int64) (*lm.Model, *lm.Tokenizer) {
	t.Helper()
	tok, err := lm.NewTokenizer(alphabet)
	if err != nil {
		t.Fatal(err)
	}
	cfg := lm.NewConfig(tok.VocabSize(), 16, 2, 2, 1, 32, 96)
	cfg.InitializerRange = 0.5
	m, err := lm.New(cfg, uint64(version)+1)
	if err != nil {
		t.Fatal(err)
	}
	return m, tok
}

func policyOf(t testing.TB, version int64, m *lm.Model, tok *lm.Tokenizer) Policy {
	t.Helper()
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
	return Policy{Version: version, Weights: weights.Bytes(), Config: cfg, Tokenizer: tokens}
}

func testPolicy(t testing.TB, version int64) Policy {
	t.Helper()
	m, tok := testModel(t, version)
	return policyOf(t, version, m, tok)
}

// rendererOf is the renderer that a server makes of a tokenizer.
func rendererOf(t testing.TB, tok *lm.Tokenizer) render.Renderer {
	t.Helper()
	data, err := json.Marshal(tok)
	if err != nil {
		t.Fatal(err)
	}
	r, err := render.New("", data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func testConfig() Config {
	c := DefaultConfig()
	c.Listen, c.MaxModelLen, c.Slots = "localhost:0", 64, 16
	return c
}

// testRuntime has its blob store in dir, and no broker.
func testRuntime(t testing.TB, dir string) *pipeline.Runtime {
	t.Helper()
	blobs, err := pipeline.OpenBlobs(dir)
	if err != nil {
		t.Fatal(err)
	}
	run := pipeline.DefaultRunConfig()
	run.Name, run.SeqLen = "test", 64
	return &pipeline.Runtime{Run: run, Instance: "one", Blobs: blobs, Log: slog.New(slog.NewTextHandler(io.Discard, nil))}
}

// store puts a policy into the blob store and returns its record.
func store(t testing.TB, rt *pipeline.Runtime, p Policy) *schemas.PolicyVersion {
	t.Helper()
	v := &schemas.PolicyVersion{Version: p.Version, Step: p.Version, Kind: "full", NextOffsets: []int64{0}}
	for _, b := range []struct {
		ref  *schemas.BlobRef
		data []byte
	}{{&v.Weights, p.Weights}, {&v.Config, p.Config}, {&v.Tokenizer, p.Tokenizer}} {
		ref, err := rt.Blobs.Put(t.Context(), "weights", b.data)
		if err != nil {
			t.Fatal(err)
		}
		*b.ref = ref
	}
	return v
}

// publish hands records to a server as its follower does.
func publish(t testing.TB, s *Server, versions ...*schemas.PolicyVersion) {
	t.Helper()
	var records []pipeline.Record
	for _, v := range versions {
		records = append(records, pipeline.Record{Value: v})
	}
	if err := s.publish(t.Context(), records); err != nil {
		t.Fatal(err)
	}
}

// serve is a server without Kafka, behind HTTP, with version 0.
func serve(t testing.TB, change func(*Config)) (*Server, *httptest.Server) {
	t.Helper()
	return serveFrozen(t, nil, change)
}

// serveFrozen is serve with frozen policies.
func serveFrozen(t testing.TB, frozen map[string]FrozenConfig, change func(*Config)) (*Server, *httptest.Server) {
	t.Helper()
	cfg := testConfig()
	if change != nil {
		change(&cfg)
	}
	s, err := New(testRuntime(t, t.TempDir()), cfg, frozen)
	if err != nil {
		t.Fatal(err)
	}
	runBackend(t, s.backend)
	if err := s.loadFrozen(t.Context()); err != nil {
		t.Fatal(err)
	}
	publish(t, s, store(t, s.rt, testPolicy(t, 0)))
	hs := httptest.NewServer(s.handler())
	t.Cleanup(hs.Close)
	return s, hs
}

// runBackend runs a backend until the test ends.
func runBackend(t testing.TB, b Backend) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := b.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
}

// alone is what a request gets by itself, token by token, on a decoder of its own: models[i] serves from token at[i] on.
func alone(t testing.TB, r Request, maxLen int, models []*lm.Model, versions []int64, at []int) Completion {
	t.Helper()
	d, err := lm.NewDecoder(models[0], 1, maxLen)
	if err != nil {
		t.Fatal(err)
	}
	slot, _ := d.Acquire()
	var sampler lm.Sampler
	rng := lm.NewRNG(uint64(r.Seed))
	topP := float32(r.TopP)
	if topP == 0 {
		topP = 1
	}
	var c Completion
	pending := r.Tokens
	for {
		for i, from := range at {
			if from == len(c.Tokens) {
				if err := d.SetModel(models[i]); err != nil {
					t.Fatal(err)
				}
				c.Versions = append(c.Versions, schemas.VersionRun{Offset: from, Version: versions[i]})
			}
		}
		var logits []float32
		for _, tok := range pending {
			if logits, err = d.Step([]lm.Chunk{{Slot: slot, Tokens: []int32{tok}}}); err != nil {
				t.Fatal(err)
			}
		}
		tok, lp := sampler.Sample(logits, float32(r.Temperature), topP, rng)
		c.Tokens, c.Logprobs = append(c.Tokens, tok), append(c.Logprobs, lp)
		for _, s := range r.StopTokens {
			if tok == s {
				c.FinishReason = FinishStop
				return c
			}
		}
		if len(c.Tokens) == r.MaxTokens || len(r.Tokens)+len(c.Tokens) == maxLen {
			c.FinishReason = FinishLength
			return c
		}
		pending = []int32{tok}
	}
}

// sameBits compares completions; log-probabilities bit for bit.
func sameBits(t testing.TB, what string, got, want Completion) {
	t.Helper()
	g, w := bitsOf(t, got), bitsOf(t, want)
	if !bytes.Equal(g, w) {
		t.Errorf("%s:\n got %s\nwant %s", what, g, w)
	}
}

func bitsOf(t testing.TB, c Completion) []byte {
	t.Helper()
	bits := make([]uint32, len(c.Logprobs))
	for i, l := range c.Logprobs {
		bits[i] = math.Float32bits(l)
	}
	data, err := json.Marshal(struct {
		Tokens   []int32
		Bits     []uint32
		Versions []schemas.VersionRun
		Finish   string
	}{c.Tokens, bits, c.Versions, c.FinishReason})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// value reads a counter or gauge.
func value(t testing.TB, m prometheus.Metric) float64 {
	t.Helper()
	var d dto.Metric
	if err := m.Write(&d); err != nil {
		t.Fatal(err)
	}
	return d.GetCounter().GetValue() + d.GetGauge().GetValue()
}

func pin(v int64) *int64 { return &v }
