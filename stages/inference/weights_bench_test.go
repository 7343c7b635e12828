package inference

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/weights"
)

// BenchmarkNewVersion measures the time from the record of a version, when it has been read, to the first token that the
// version samples, with the native backend (token), and to the call of Load of a backend that does nothing (load): what a
// server beside the stage has to wait for. ms is the shortest of all rounds, and plain how often in that time the whole
// weights could be read as a file with os.ReadFile, the shortest of as many rounds, in turns with the others; all files are in
// the memory of the system. Deltas change a sixteenth of the weights.
func BenchmarkNewVersion(b *testing.B) {
	for _, size := range []struct{ mib, hidden, layers int }{{1, 64, 4}, {16, 256, 4}, {256, 1024, 4}, {1024, 1024, 16}} {
		if testing.Short() && size.mib > 16 {
			continue
		}
		b.Run(fmt.Sprintf("%dMiB", size.mib), func(b *testing.B) {
			for _, kind := range []string{schemas.KindFull, schemas.KindDelta} {
				b.Run(kind, func(b *testing.B) {
					w := newArrivals(b, kind, size.hidden, size.layers)
					b.Run("load", func(b *testing.B) { w.measure(b, &idle{}) })
					b.Run("token", func(b *testing.B) { w.measure(b, nil) })
				})
			}
		})
	}
}

// arrivals are two versions, each made of the other.
type arrivals struct {
	rt    *pipeline.Runtime
	cfg   Config
	pair  [2]*schemas.PolicyVersion // what is published, in turns
	first *schemas.PolicyVersion    // full, the weights of pair[1]
}

func newArrivals(b *testing.B, kind string, hidden, layers int) *arrivals {
	b.Helper()
	tok, err := lm.NewTokenizer(alphabet)
	if err != nil {
		b.Fatal(err)
	}
	m, err := lm.New(lm.NewConfig(tok.VocabSize(), hidden, layers, 4, 4, 4*hidden, 64), 1)
	if err != nil {
		b.Fatal(err)
	}
	w := &arrivals{rt: testRuntime(b, b.TempDir()), cfg: testConfig()}
	w.cfg.Versions, w.cfg.Slots = 2, 1
	p := policyOf(b, 0, m, tok)
	w.first = store(b, w.rt, p)
	before := p.Weights
	for _, param := range m.Params() {
		for layer := range max(1, layers/4) {
			if param.Name == fmt.Sprintf("model.layers.%d.mlp.down_proj.weight", layer) {
				param.Data[0]++
			}
		}
	}
	p = policyOf(b, 0, m, tok)
	w.pair[0], w.pair[1] = store(b, w.rt, p), new(*w.first)
	if kind == schemas.KindDelta {
		dir := b.TempDir()
		files := [2]string{filepath.Join(dir, "0"), filepath.Join(dir, "1")}
		if err := errors.Join(os.WriteFile(files[0], p.Weights, 0o600), os.WriteFile(files[1], before, 0o600)); err != nil {
			b.Fatal(err)
		}
		for i := range w.pair {
			out := filepath.Join(dir, "delta")
			d, err := weights.WriteDelta(out, files[1-i], files[i])
			if err != nil {
				b.Fatal(err)
			}
			d.Record(w.pair[i])
			if w.pair[i].Weights, err = w.rt.Blobs.PutFile(b.Context(), "weights", out); err != nil {
				b.Fatal(err)
			}
		}
	}
	return w
}

// measure publishes versions in turns. A nil backend is the native one, which samples a token of each.
func (w *arrivals) measure(b *testing.B, backend Backend) {
	native := backend == nil
	if native {
		backend = newNative(w.cfg)
	}
	s, err := newServer(w.rt, w.cfg, nil, backend)
	if err != nil {
		b.Fatal(err)
	}
	runBackend(b, s.backend)
	next := int64(0)
	turn := func(v schemas.PolicyVersion) {
		v.Version = next
		next++
		publish(b, s, &v)
		if !native {
			return
		}
		c, err := s.Generate(b.Context(), Request{Tokens: []int32{1}, MaxTokens: 1, Temperature: 1})
		if err != nil || c.Versions[0].Version != v.Version {
			b.Fatalf("%v sampled, error %v, want version %d", c.Versions, err, v.Version)
		}
	}
	turn(*w.first)
	turn(*w.pair[0]) // the first delta reads its base
	turn(*w.pair[1])
	path := filepath.Join(b.TempDir(), "whole")
	if err := w.rt.Blobs.Fetch(b.Context(), w.first.Weights, path); err != nil {
		b.Fatal(err)
	}
	var turns, plain []time.Duration
	for b.Loop() {
		start := time.Now()
		turn(*w.pair[next&1^1])
		turns = append(turns, time.Since(start))
		start = time.Now()
		if _, err := os.ReadFile(path); err != nil {
			b.Fatal(err)
		}
		plain = append(plain, time.Since(start))
	}
	b.ReportMetric(slices.Min(turns).Seconds()*1e3, "ms")
	b.ReportMetric(slices.Min(turns).Seconds()/slices.Min(plain).Seconds(), "plain")
	b.ReportMetric(0, "ns/op")
}

// idle is a backend that is given versions and serves nothing.
type idle struct{ Backend }

func (*idle) Load(context.Context, Policy) error { return nil }
func (*idle) Unload(int64)                       {}

func (*idle) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}
