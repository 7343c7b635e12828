package inference

import (
	"fmt"
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/prl-project/prl/stages/internal/lm"
)

// benchModel has about 100k parameters: 2 layers of 64.
func benchModel(tb testing.TB) (*lm.Model, *lm.Tokenizer) {
	tb.Helper()
	tok, err := lm.NewTokenizer(alphabet)
	if err != nil {
		tb.Fatal(err)
	}
	m, err := lm.New(lm.NewConfig(tok.VocabSize(), 64, 2, 4, 2, 192, 128), 1)
	if err != nil {
		tb.Fatal(err)
	}
	return m, tok
}

func benchServer(b *testing.B) *Server {
	b.Helper()
	m, tok := benchModel(b)
	rt := testRuntime(b, b.TempDir())
	rt.Run.SeqLen = 128
	cfg := DefaultConfig()
	s, err := New(rt, cfg, nil)
	if err != nil {
		b.Fatal(err)
	}
	runBackend(b, s.backend)
	publish(b, s, store(b, rt, policyOf(b, 0, m, tok)))
	return s
}

// callers send requests at once, each with a prompt of promptTokens.
const callers, promptTokens = 256, 16

func promptOf(n int) []int32 {
	tokens := make([]int32, promptTokens)
	for i := range tokens {
		tokens[i] = int32((n>>i)%32) + 8
	}
	return tokens
}

func measure(b *testing.B, g Generator, tokens int) {
	var next sync.Mutex
	left := b.N
	take := func() (n int, ok bool) {
		next.Lock()
		defer next.Unlock()
		left--
		return left, left >= 0
	}
	b.ResetTimer()
	var wg sync.WaitGroup
	for range callers {
		wg.Go(func() {
			for {
				n, ok := take()
				if !ok {
					return
				}
				r := Request{Tokens: promptOf(n), MaxTokens: tokens, Temperature: 1, Seed: int64(n)}
				if _, err := g.Generate(b.Context(), r); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	seconds := b.Elapsed().Seconds()
	b.ReportMetric(float64(b.N)/seconds, "requests/s")
	b.ReportMetric(float64(b.N*tokens)/seconds, "tokens/s")
	b.ReportMetric(0, "ns/op")
}

// BenchmarkDecoder is the yardstick: as many sequences in a decoder, without a server around it.
func BenchmarkDecoder(b *testing.B) {
	for _, tokens := range []int{4, 64} {
		b.Run(fmt.Sprintf("tokens=%d", tokens), func(b *testing.B) {
			m, _ := benchModel(b)
			d, err := lm.NewDecoder(m, callers, promptTokens+tokens)
			if err != nil {
				b.Fatal(err)
			}
			var chunks [callers]lm.Chunk
			for range chunks {
				d.Acquire()
			}
			var sampler lm.Sampler
			rng, vocab := lm.NewRNG(1), m.Config().VocabSize
			for b.Loop() {
				for i := range chunks {
					d.Truncate(i, 0)
					chunks[i] = lm.Chunk{Slot: i, Tokens: promptOf(i)}
				}
				for range tokens {
					logits, err := d.Step(chunks[:])
					if err != nil {
						b.Fatal(err)
					}
					for i := range chunks {
						token, _ := sampler.Sample(logits[i*vocab:(i+1)*vocab], 1, 1, rng)
						chunks[i].Tokens = append(chunks[i].Tokens[:0], token)
					}
				}
			}
			b.ReportMetric(float64(b.N*callers*tokens)/b.Elapsed().Seconds(), "tokens/s")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func BenchmarkInProcess(b *testing.B) { measure(b, benchServer(b).Model(), 4) }

func BenchmarkDecode(b *testing.B) { measure(b, benchServer(b).Model(), 64) }

func BenchmarkHTTP(b *testing.B) {
	hs := httptest.NewServer(benchServer(b).handler())
	b.Cleanup(hs.Close)
	c := NewClient(hs.URL)
	b.Cleanup(c.Close)
	measure(b, c, 4)
}
