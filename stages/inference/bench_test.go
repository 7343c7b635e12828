package inference

import (
	"net/http/httptest"
	"sync"
	"testing"

	"github.com/prl-project/prl/stages/internal/lm"
)

// benchServer serves a model of about 100k parameters: 2 layers of 64.
func benchServer(b *testing.B) *Server {
	b.Helper()
	tok, err := lm.NewTokenizer(alphabet)
	if err != nil {
		b.Fatal(err)
	}
	m, err := lm.New(lm.NewConfig(tok.VocabSize(), 64, 2, 4, 2, 192, 128), 1)
	if err != nil {
		b.Fatal(err)
	}
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

// measure lets 256 callers at once send requests with a prompt of 16 tokens.
func measure(b *testing.B, g Generator, tokens int) {
	const callers = 256
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
				r := Request{Tokens: make([]int32, 16), MaxTokens: tokens, Temperature: 1, Seed: int64(n)}
				for i := range r.Tokens {
					r.Tokens[i] = int32((n>>i)%32) + 8
				}
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

func BenchmarkInProcess(b *testing.B) { measure(b, benchServer(b).Model(), 4) }

func BenchmarkDecode(b *testing.B) { measure(b, benchServer(b).Model(), 64) }

func BenchmarkHTTP(b *testing.B) {
	hs := httptest.NewServer(benchServer(b).handler())
	b.Cleanup(hs.Close)
	c := NewClient(hs.URL)
	b.Cleanup(c.Close)
	measure(b, c, 4)
}
