package lm

import (
	"math"
	"testing"
)

// TestGradient compares the gradient of every parameter tensor with central differences of the loss: along a random
// direction, and along the gradient's largest elements.
func TestGradient(t *testing.T) {
	for _, test := range []struct {
		name   string
		vocab  int // above and below the hidden size: the embedding's gradient is kept differently
		layers int
		loss   RL
	}{
		{"policy", 13, 2, RL{AdvTau: 1, KLTau: 0.05, MaskHigh: 9, MaskLow: 9}},
		{"entropy", 13, 2, RL{EntropyCoef: 1, MaskHigh: 9, MaskLow: 9}},
		{"all, masked, large vocabulary, one layer", 40, 1, RL{AdvTau: 1.5, KLTau: 0.02, MaskHigh: 0.2, MaskLow: 0.2, EntropyCoef: 0.3}},
	} {
		t.Run(test.name, func(t *testing.T) {
			cfg := tinyConfig(test.vocab)
			cfg.NumHiddenLayers = test.layers
			m := newModel(t, cfg, 7)
			rng := NewRNG(3)
			b := randomBatch(rng, test.vocab, 0.4, 9, 1, 70, 5, 40, 33)
			test.loss.Tokens = b.masked()
			l := newLearner(m)
			if _, err := l.Accumulate(b, test.loss); err != nil {
				t.Fatal(err)
			}
			grads := l.Gradient()
			// lossAt is the loss with param p moved by eps·dir.
			lossAt := func(p Param, dir []float32, eps float32) float64 {
				old := append([]float32(nil), p.Data...)
				for i, d := range dir {
					p.Data[i] += eps * d
				}
				m.refresh()
				probe := NewLearner(m)
				got, err := probe.Accumulate(b, test.loss)
				if err != nil {
					t.Fatal(err)
				}
				copy(p.Data, old)
				m.refresh()
				return got.Loss
			}
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
		})
	}
}
