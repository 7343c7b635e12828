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

// shapes are the tiny models of every kind: in the one that is like Qwen3, heads are wider than their share of the hidden size.
func shapes(vocab int) map[string]Config {
	qwen3 := tinyConfig(vocab).Qwen3()
	qwen3.HeadDim = 10
	untied := qwen3
	untied.TieWordEmbeddings = false
	return map[string]Config{TypeLlama: tinyConfig(vocab), TypeQwen3: qwen3, "untied": untied}
}

// eachShape runs f on each of the shapes.
func eachShape(t *testing.T, vocab int, f func(t *testing.T, cfg Config)) {
	for name, cfg := range shapes(vocab) {
		t.Run(name, func(t *testing.T) { f(t, cfg) })
	}
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

// imitated gives tokens to the components ce and ref_kl: some of component rl's, some of each other's, some of none.
func imitated(rng *rand.Rand, b *Batch) {
	for _, n := range b.SeqLens {
		for i := range int(n) {
			weights := [2]float32{}
			for c := range weights {
				if i > 0 && rng.Float64() < 0.3 {
					weights[c] = 0.1 + rng.Float32()
				}
			}
			b.CEWeights, b.RefKLWeights = append(b.CEWeights, weights[0]), append(b.RefKLWeights, weights[1])
			b.RefLogProbs = append(b.RefLogProbs, -4*rng.Float32())
		}
	}
}

func count(weights []float32) (n int) {
	for _, w := range weights {
		if w != 0 {
			n++
		}
	}
	return n
}

// all is every component over the tokens of b.
func (b *Batch) all() []Component {
	rl := DefaultRL(b.masked())
	rl.EntropyCoef = 0.1
	return []Component{rl, CE{count(b.CEWeights)}, RefKL{0.2, 1e-3, count(b.RefKLWeights)}}
}

// part is the sequences from one to another.
func (b *Batch) part(from, to int) *Batch {
	first, end := 0, 0
	for i, n := range b.SeqLens[:to] {
		if i < from {
			first += int(n)
		}
		end += int(n)
	}
	return &Batch{
		Tokens: b.Tokens[first:end], SeqLens: b.SeqLens[from:to], Mask: b.Mask[first:end], Advantages: b.Advantages[first:end],
		LogProbs: b.LogProbs[first:end], Temperatures: b.Temperatures[first:end], CEWeights: b.CEWeights[first:end],
		RefKLWeights: b.RefKLWeights[first:end], RefLogProbs: b.RefLogProbs[first:end],
	}
}

// onCPUs runs f with GOMAXPROCS set to each of 1 to 4.
func onCPUs(f func(cpus int)) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(0))
	for n := 1; n <= 4; n++ {
		runtime.GOMAXPROCS(n)
		f(n)
	}
}
