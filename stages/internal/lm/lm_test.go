package lm

import (
	"math/rand/v2"
	"runtime"
	"testing"
)

// tinyConfig has odd sizes, several groups of heads and both orientations of gradients.
func tinyConfig(vocab int) Config {
	c := NewConfig(vocab, 24, 2, 4, 2, 20, 160)
	c.InitializerRange = 0.3
	return c
}

func newModel(t testing.TB, c Config, seed uint64) *Model {
	t.Helper()
	m, err := New(c, seed)
	if err != nil {
		t.Fatal(err)
	}
	// Norms other than one, so that their place in the formulas matters.
	rng := NewRNG(seed + 1)
	for _, p := range m.params {
		if len(p.Shape) == 1 {
			for i := range p.Data {
				p.Data[i] = 0.5 + rng.Float32()
			}
		}
	}
	return m
}

func newLearner(m *Model) *Learner { m.refresh(); return NewLearner(m) }

// randomBatch has sequences of the given lengths in which about share of the tokens are masked in.
func randomBatch(rng *rand.Rand, vocab int, share float64, lens ...int32) *Batch {
	b := &Batch{SeqLens: lens}
	for _, n := range lens {
		for i := range int(n) {
			mask := byte(0)
			if i > 0 && rng.Float64() < share {
				mask = 1
			}
			b.Tokens = append(b.Tokens, rng.Int32N(int32(vocab)))
			b.Mask = append(b.Mask, mask)
			b.Advantages = append(b.Advantages, float32(rng.NormFloat64()))
			b.LogProbs = append(b.LogProbs, -0.1-3*rng.Float32())
			b.Temperatures = append(b.Temperatures, 0.6+rng.Float32())
		}
	}
	return b
}

func (b *Batch) masked() (n int) {
	for _, m := range b.Mask {
		n += int(m)
	}
	return n
}

// onCPUs runs f with GOMAXPROCS set to each of 1 to 4.
func onCPUs(f func(cpus int)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for n := 1; n <= 4; n++ {
		runtime.GOMAXPROCS(n)
		f(n)
	}
}
