package lm

import (
	"fmt"
	"runtime"
	"sync"
	"testing"

	"gonum.org/v1/gonum/blas"
)

// demoConfig is the size of the demo's model.
func demoConfig() Config { return NewConfig(48, 64, 2, 4, 2, 192, 256) }

// perSecond reports what was done in every round of a benchmark, over all CPUs.
func perSecond(b *testing.B, tokens int, flops float64) {
	if tokens > 0 {
		b.ReportMetric(float64(b.N*tokens)/b.Elapsed().Seconds(), "tokens/s")
	}
	b.ReportMetric(flops*float64(b.N)/b.Elapsed().Seconds()/1e9, "GFLOP/s")
}

// BenchmarkGemm is the yardstick: what the machine's CPUs together do in matrix products. gonum is one large product left to
// gonum, tiles the same through this package, and model the products of a forward pass of 64 tokens on every CPU.
func BenchmarkGemm(b *testing.B) {
	const m, n, k = 1024, 128, 128
	x, y, z := make([]float32, m*k), make([]float32, k*n), make([]float32, m*n)
	for i := range x {
		x[i] = 1 + float32(i%7)
	}
	for i := range y {
		y[i] = 1 + float32(i%5)
	}
	b.Run("gonum", func(b *testing.B) {
		for b.Loop() {
			impl.Sgemm(blas.NoTrans, blas.NoTrans, m, n, k, 1, x, k, y, n, 0, z, n)
		}
		perSecond(b, 0, 2*m*n*k)
	})
	b.Run("tiles", func(b *testing.B) {
		for b.Loop() {
			onAll(func(cpu, cpus int) {
				from, to := cpu*m/cpus, (cpu+1)*m/cpus
				gemm(to-from, n, k, x[from*k:], k, y, n, 0, z[from*n:], n)
			})
		}
		perSecond(b, 0, 2*m*n*k)
	})
	b.Run("model", func(b *testing.B) {
		const rows, times = 64, 16
		model, err := New(demoConfig(), 1)
		if err != nil {
			b.Fatal(err)
		}
		var flops float64
		for _, w := range model.matrices() {
			flops += 2 * rows * float64(w.in*w.out)
		}
		outs := make([][]float32, runtime.GOMAXPROCS(0))
		for i := range outs {
			outs[i] = make([]float32, rows*2*model.cfg.IntermediateSize)
		}
		for b.Loop() {
			onAll(func(cpu, _ int) {
				for range times {
					for _, w := range model.matrices() {
						w.forward(outs[cpu], x[:rows*w.in], rows, 0)
					}
				}
			})
		}
		perSecond(b, 0, times*flops*float64(len(outs)))
	})
}

// onAll runs f once on each CPU.
func onAll(f func(cpu, cpus int)) {
	var wg sync.WaitGroup
	n := runtime.GOMAXPROCS(0)
	for cpu := range n {
		wg.Go(func() { f(cpu, n) })
	}
	wg.Wait()
}

// slotsOf makes a decoder with all of its slots taken.
func slotsOf(tb testing.TB, slots, maxLen int) *Decoder {
	m, err := New(demoConfig(), 1)
	if err != nil {
		tb.Fatal(err)
	}
	d, err := NewDecoder(m, slots, maxLen)
	if err != nil {
		tb.Fatal(err)
	}
	for range slots {
		d.Acquire()
	}
	return d
}

// next are chunks of some tokens for each slot.
func next(slots, tokens int) []Chunk {
	chunks := make([]Chunk, slots)
	for i := range chunks {
		chunks[i].Slot = i
		for j := range tokens {
			chunks[i].Tokens = append(chunks[i].Tokens, int32((i+j)%48))
		}
	}
	return chunks
}

// BenchmarkDecode steps all slots by one token, at 12 tokens of context on average.
func BenchmarkDecode(b *testing.B) {
	for _, slots := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) { measureSteps(b, slots, 1, 24) })
	}
}

// BenchmarkPrefill lets every slot read a prompt of 64 tokens.
func BenchmarkPrefill(b *testing.B) {
	for _, slots := range []int{1, 8, 64} {
		b.Run(fmt.Sprintf("slots=%d", slots), func(b *testing.B) { measureSteps(b, slots, 64, 64) })
	}
}

func measureSteps(b *testing.B, slots, tokens, maxLen int) {
	d, chunks := slotsOf(b, slots, maxLen), next(slots, tokens)
	var cycle float64 // operations from empty slots to full ones
	for at := 0; at < maxLen; at += tokens {
		var rows []int32
		for i := range tokens {
			rows = append(rows, int32(at+i))
		}
		cycle += float64(slots) * demoConfig().flops(rows, rows[len(rows)-1:])
	}
	b.ReportAllocs()
	for b.Loop() {
		if d.Len(0) == maxLen {
			for s := range slots {
				d.Truncate(s, 0)
			}
		}
		if _, err := d.Step(chunks); err != nil {
			b.Fatal(err)
		}
	}
	perSecond(b, slots*tokens, cycle*float64(tokens)/float64(maxLen))
}

// BenchmarkTrain makes a learner's step on sequences of 24 tokens, a quarter of them in the loss.
func BenchmarkTrain(b *testing.B) {
	for _, sequences := range []int{1, 8, 64, 256} {
		b.Run(fmt.Sprintf("sequences=%d", sequences), func(b *testing.B) {
			m, err := New(demoConfig(), 1)
			if err != nil {
				b.Fatal(err)
			}
			batch := trained(sequences)
			l, opt := NewLearner(m), NewAdamW()
			b.ReportAllocs()
			for b.Loop() {
				if _, err := l.Accumulate(batch, DefaultRL(batch.masked())); err != nil {
					b.Fatal(err)
				}
				l.Step(opt, 1e-4)
			}
			perSecond(b, len(batch.Tokens), 3*batch.flops(m.cfg))
		})
	}
}

func trained(sequences int) *Batch {
	lens := make([]int32, sequences)
	for i := range lens {
		lens[i] = 24
	}
	return randomBatch(NewRNG(2), 48, 0.25, lens...)
}

// flops are those of a forward pass.
func (b *Batch) flops(c Config) (n float64) {
	var p pass
	for _, s := range b.shards() {
		p.load(b, s)
		var wanted []int32
		for _, r := range p.want {
			wanted = append(wanted, p.pos[r])
		}
		n += c.flops(p.pos, wanted)
	}
	return n
}
