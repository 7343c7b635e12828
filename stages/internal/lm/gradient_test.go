package lm

import (
	"math"
	"testing"
)

// A tokenLoss is the loss of token i, written down once more: pi and entropy change with the weights, pi0 is π at the
// weights at which the gradient is taken, for what counts as a constant.
type tokenLoss func(i int, pi, entropy, pi0 float64) float64

// gradientCase is a loss whose gradient is compared with differences of another form of it.
type gradientCase struct {
	name       string
	components []Component
	loss       func(b *Batch, pi0 []float32) tokenLoss
}

func gradientCases(b *Batch) []gradientCase {
	n, ce, refKL := float64(b.masked()), float64(count(b.CEWeights)), float64(count(b.RefKLWeights))
	adv := func(i int) float64 { return float64(b.Advantages[i]) }
	r := func(i int, pi float64) float64 { return pi - float64(b.LogProbs[i]) }
	d := func(i int, pi float64) float64 { return math.Exp(pi) - math.Exp(float64(b.LogProbs[i])) }
	// rl is a loss of component rl without a policy term, and with the one given.
	rl := func(policy Policy, tau, coef float64, term tokenLoss) ([]Component, func(*Batch, []float32) tokenLoss) {
		return []Component{RL{Policy: policy, KLTau: tau, EntropyCoef: coef, Tokens: b.masked()}}, func(*Batch, []float32) tokenLoss {
			return func(i int, pi, entropy, pi0 float64) float64 {
				if b.Mask[i] == 0 {
					return 0
				}
				return (term(i, pi, entropy, pi0) + tau*math.Pow(r(i, pi), 2) - coef*entropy) / n
			}
		}
	}
	var cases []gradientCase
	add := func(name string, components []Component, loss func(*Batch, []float32) tokenLoss) {
		cases = append(cases, gradientCase{name, components, loss})
	}
	dppo := func(bound float64) tokenLoss {
		return func(i int, pi, _, pi0 float64) float64 {
			if adv(i) > 0 && d(i, pi0) > bound || adv(i) <= 0 && d(i, pi0) < -bound {
				return 0
			}
			return -adv(i) * math.Exp(r(i, pi))
		}
	}
	clip := func(low, high float64, ratio func(i int, pi, pi0 float64) float64) tokenLoss {
		return func(i int, pi, _, pi0 float64) float64 {
			inside := math.Min(math.Max(ratio(i, pi0, pi0), 1-low), 1+high)
			if now := ratio(i, pi0, pi0); adv(i)*now > adv(i)*inside {
				return -adv(i) * inside
			}
			return -adv(i) * ratio(i, pi, pi0)
		}
	}

	c, l := rl(DPPO{9, 9}, 0.05, 0, dppo(9))
	add("policy", c, l)
	c, l = rl(DPPO{9, 9}, 0, 1, dppo(9))
	add("entropy", c, l)
	c, l = rl(DPPO{0.2, 0.2}, 0.02, 0.3, dppo(0.2))
	add("dppo", c, l)
	c, l = rl(IPO{0.1}, 0.02, 0, func(i int, pi, _, pi0 float64) float64 {
		if math.Abs(d(i, pi0)) > 0.1 {
			return 0
		}
		return -adv(i) * math.Exp(r(i, pi))
	})
	add("ipo", c, l)
	c, l = rl(PPO{0.2, 0.3}, 0, 0, clip(0.2, 0.3, func(i int, pi, _ float64) float64 { return math.Exp(r(i, pi)) }))
	add("ppo", c, l)
	c, l = rl(TIS{1.2}, 0, 0, func(i int, pi, _, pi0 float64) float64 { return -adv(i) * math.Min(math.Exp(r(i, pi0)), 1.2) * pi })
	add("tis", c, l)

	gspo := []Component{RL{Policy: GSPO{0.3, 0.1}, Tokens: b.masked()}}
	add("gspo", gspo, func(b *Batch, pi0 []float32) tokenLoss {
		whole := make([]float64, len(b.Tokens)) // of each token its sequence's ratio
		at := 0
		for _, length := range b.SeqLens {
			product, tokens := 1.0, 0.0
			for i := at; i < at+int(length); i++ {
				if b.Mask[i] == 1 {
					product *= math.Exp(r(i, float64(pi0[i])))
					tokens++
				}
			}
			for i := at; i < at+int(length); i++ {
				whole[i] = math.Pow(product, 1/tokens)
			}
			at += int(length)
		}
		term := clip(0.3, 0.1, func(i int, pi, pi0 float64) float64 { return whole[i] * math.Exp(pi-pi0) })
		return func(i int, pi, entropy, pi0 float64) float64 {
			if b.Mask[i] == 0 {
				return 0
			}
			return term(i, pi, entropy, pi0) / n
		}
	})

	ceLoss := func(i int, pi, _, _ float64) float64 { return -float64(b.CEWeights[i]) * pi / ce }
	add("ce", []Component{CE{Tokens: count(b.CEWeights)}}, func(*Batch, []float32) tokenLoss { return ceLoss })
	refLoss := func(i int, pi, _, pi0 float64) float64 {
		loss := 0.05 * math.Pow(r(i, pi), 2)
		if d(i, pi0) >= -0.2 {
			loss -= (float64(b.RefLogProbs[i]) - pi0) * math.Exp(r(i, pi))
		}
		return float64(b.RefKLWeights[i]) * loss / refKL
	}
	teacher := RefKL{MaskLow: 0.2, KLTau: 0.05, Tokens: count(b.RefKLWeights)}
	add("ref_kl", []Component{teacher}, func(*Batch, []float32) tokenLoss { return refLoss })
	c, l = rl(DPPO{0.2, 0.2}, 0.02, 0.3, dppo(0.2))
	add("all", append(c, CE{Tokens: count(b.CEWeights)}, teacher), func(b *Batch, pi0 []float32) tokenLoss {
		return func(i int, pi, entropy, pi0 float64) float64 {
			return l(b, nil)(i, pi, entropy, pi0) + ceLoss(i, pi, entropy, pi0) + refLoss(i, pi, entropy, pi0)
		}
	})
	return cases
}

// TestGradient compares the gradient of every parameter tensor with central differences of the loss: along a random
// direction, and along the gradient's largest elements. The loss is one that the test computes.
func TestGradient(t *testing.T) {
	for _, size := range []struct {
		name   string
		vocab  int // above and below the hidden size: the embedding's gradient is kept differently
		layers int
	}{{"two layers", 13, 2}, {"large vocabulary, one layer", 40, 1}} {
		rng := NewRNG(3)
		b := randomBatch(rng, size.vocab, 0.4, 9, 1, 70, 5, 40, 33)
		imitated(rng, b)
		cases := gradientCases(b)
		for shape, cfg := range shapes(size.vocab) {
			cfg.NumHiddenLayers = size.layers
			m := newModel(t, cfg, 7)
			tests := cases
			if shape != TypeLlama { // the loss knows nothing of the shape: all components at once will do
				tests = cases[len(cases)-1:]
			}
			for _, test := range tests {
				t.Run(size.name+"/"+shape+"/"+test.name, func(t *testing.T) { checkGradient(t, m, b, test) })
			}
		}
	}
}

func checkGradient(t *testing.T, m *Model, b *Batch, test gradientCase) {
	l := newLearner(m)
	metrics, err := l.Accumulate(b, test.components...)
	if err != nil {
		t.Fatal(err)
	}
	score := func() (logProbs, entropies []float32) {
		if logProbs, entropies, err = NewLearner(m).Score(b); err != nil {
			t.Fatal(err)
		}
		return logProbs, entropies
	}
	pi0, _ := score()
	token := test.loss(b, pi0)
	loss := func() (sum float64) {
		pi, entropies := score()
		for i := range pi {
			if b.inLoss(i) {
				sum += token(i, float64(pi[i]), float64(entropies[i]), float64(pi0[i]))
			}
		}
		return sum
	}
	if got, want := metrics.Loss(), loss(); math.Abs(got-want) > 1e-6*(1+math.Abs(want)) {
		t.Errorf("the loss is %g, want %g", got, want)
	}
	// lossAt is the loss with param p moved by eps·dir.
	lossAt := func(p Param, dir []float32, eps float32) float64 {
		old := append([]float32(nil), p.Data...)
		for i, d := range dir {
			p.Data[i] += eps * d
		}
		m.refresh()
		moved := loss()
		copy(p.Data, old)
		m.refresh()
		return moved
	}
	grads := l.Gradient()
	rng := NewRNG(5)
	for k, p := range m.params {
		g := grads[k]
		if g.Name != p.Name {
			t.Fatalf("gradient %d is that of %s, not of %s", k, g.Name, p.Name)
		}
		var norm float64
		largest := 0
		for i, v := range g.Data {
			norm += float64(v) * float64(v)
			if math.Abs(float64(v)) > math.Abs(float64(g.Data[largest])) {
				largest = i
			}
		}
		norm = math.Sqrt(norm)
		if norm < 1e-5 {
			t.Errorf("%s has a gradient of %g: the test would show nothing", p.Name, norm)
		}
		random, along, one := make([]float32, len(p.Data)), make([]float32, len(p.Data)), make([]float32, len(p.Data))
		for i := range random {
			random[i] = float32(rng.NormFloat64() / math.Sqrt(float64(len(random))))
			along[i] = g.Data[i] / float32(norm)
		}
		one[largest] = 1
		for name, dir := range map[string][]float32{"random direction": random, "gradient": along, "largest element": one} {
			var want float64
			for i, d := range dir {
				want += float64(d) * float64(g.Data[i])
			}
			const eps = 4e-3
			got := (lossAt(p, dir, eps) - lossAt(p, dir, -eps)) / (2 * eps)
			if diff := math.Abs(got - want); diff > 1e-4+0.01*math.Abs(want)+0.002*norm {
				t.Errorf("%s, %s: differences give %g, the gradient %g (norm %g)", p.Name, name, got, want, norm)
			}
		}
	}
}
