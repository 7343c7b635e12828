package lm

import (
	"math"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(b)) }

// TestRL checks value and derivatives of single tokens against figures worked out by hand from the formulas.
func TestRL(t *testing.T) {
	p := func(x float64) float64 { return math.Log(x) }
	for _, test := range []struct {
		name             string
		pi, mu, adv      float64 // probabilities
		loss, dLogProb   float64 // times Tokens = 4
		high, low        int
		ratio, kl, unmet float64
	}{
		// ρ = 1: −A, and the r² term vanishes.
		{"on policy", 0.5, 0.5, 2, -2, -2, 0, 0, 1, 0, 0},
		// ρ = 1.2, d = 0.1: kept. r = 0.182322, r² = 0.033241.
		{"kept, up", 0.6, 0.5, 2, -2.4 + 1e-3*0.0332411, -2.4 + 2e-3*0.1823216, 0, 0, 1.2, 0.0176784, 0},
		// d = 0.3 > 0.2 and A > 0: only r² stays. r = 0.470004, r² = 0.220903.
		{"masked high", 0.8, 0.5, 2, 1e-3 * 0.2209034, 2e-3 * 0.4700036, 1, 0, 1.6, 0, 0.1299964},
		// The same rise with A < 0 is kept.
		{"kept, rise against", 0.8, 0.5, -2, 3.2 + 1e-3*0.2209034, 3.2 + 2e-3*0.4700036, 0, 0, 1.6, 0.1299964, 0},
		// d = −0.3 and A < 0: masked. r = −0.916291, r² = 0.839589.
		{"masked low", 0.2, 0.5, -2, 1e-3 * 0.8395888, -2e-3 * 0.9162907, 0, 1, 0.4, 0, 0.3162907},
		// An advantage of 0 counts as not positive.
		{"zero advantage", 0.2, 0.5, 0, 1e-3 * 0.8395888, -2e-3 * 0.9162907, 0, 1, 0.4, 0, 0.3162907},
		// A fall with A > 0 is kept.
		{"kept, fall against", 0.2, 0.5, 2, -0.8 + 1e-3*0.8395888, -0.8 - 2e-3*0.9162907, 0, 0, 0.4, 0.3162907, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &Batch{Tokens: []int32{0}, Advantages: []float32{float32(test.adv)}, LogProbs: []float32{float32(p(test.mu))}}
			var m Metrics
			const entropy = 0.7
			c := DefaultRL(4)
			c.EntropyCoef = 0.1
			dLogProb, dEntropy := c.Term(b, 0, p(test.pi), entropy, &m)
			for _, x := range []struct {
				name      string
				got, want float64
			}{
				{"loss", m.Loss, (test.loss - 0.1*entropy) / 4}, {"dLogProb", dLogProb, test.dLogProb / 4}, {"dEntropy", dEntropy, -0.1 / 4},
				{"ratio", m.MeanRatio(), test.ratio}, {"mismatch KL", m.MeanMismatchKL(), test.kl}, {"masked KL", m.MeanMaskedKL(), test.unmet},
				{"masked share", m.MaskedShare(), float64(test.high + test.low)},
			} {
				if math.Abs(x.got-x.want) > 2e-7 {
					t.Errorf("%s = %.9f, want %.9f", x.name, x.got, x.want)
				}
			}
			if m.MaskedHigh != test.high || m.MaskedLow != test.low {
				t.Errorf("masked high %d, low %d, want %d, %d", m.MaskedHigh, m.MaskedLow, test.high, test.low)
			}
		})
	}
}

// TestMetricsOfNothing: a mean over no token is 0.
func TestMetricsOfNothing(t *testing.T) {
	var m Metrics
	for _, v := range []float64{m.MeanNLL(), m.MeanEntropy(), m.MeanRatio(), m.MeanMismatchKL(), m.MeanMaskedKL(), m.MaskedShare()} {
		if v != 0 {
			t.Errorf("a mean over no token is %v", v)
		}
	}
}

// TestDistribution checks log-probabilities and entropy against float64 arithmetic.
func TestDistribution(t *testing.T) {
	rng := NewRNG(1)
	for _, n := range []int{1, 2, 48, 264} {
		for _, temperature := range []float32{0.1, 1, 2.5} {
			logits := make([]float32, n)
			for i := range logits {
				logits[i] = float32(4 * rng.NormFloat64())
			}
			var sum, entropy float64
			for _, v := range logits {
				sum += math.Exp(float64(v) / float64(temperature))
			}
			for _, v := range logits {
				lp := float64(v)/float64(temperature) - math.Log(sum)
				entropy -= lp * math.Exp(lp)
			}
			var d distribution
			d.set(logits, temperature)
			if got := d.entropy(logits); math.Abs(got-entropy) > 1e-4 {
				t.Errorf("%d logits at %g: entropy %g, want %g", n, temperature, got, entropy)
			}
			for i, v := range logits {
				want := float64(v)/float64(temperature) - math.Log(sum)
				if got := float64(d.logProb(logits, int32(i))); math.Abs(got-want) > 1e-4 {
					t.Errorf("log-probability %g, want %g", got, want)
				}
			}
		}
	}
}

// TestBatchValidate: what is wrong with a batch is found before anything is computed.
func TestBatchValidate(t *testing.T) {
	good := func() *Batch {
		return &Batch{Tokens: []int32{1, 2, 3}, SeqLens: []int32{2, 1}, Mask: []byte{0, 1, 0},
			Advantages: []float32{0, 1, 0}, LogProbs: []float32{0, -1, 0}, Temperatures: []float32{0, 1, 0}}
	}
	l := NewLearner(newModel(t, tinyConfig(13), 1))
	if _, err := l.Accumulate(good(), DefaultRL(1)); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(b *Batch){
		"lengths":           func(b *Batch) { b.SeqLens[0] = 1 },
		"empty sequence":    func(b *Batch) { b.SeqLens = []int32{3, 0} },
		"too long":          func(b *Batch) { b.SeqLens[0] = 1000 },
		"token":             func(b *Batch) { b.Tokens[2] = 13 },
		"negative token":    func(b *Batch) { b.Tokens[2] = -1 },
		"mask length":       func(b *Batch) { b.Mask = b.Mask[:2] },
		"mask value":        func(b *Batch) { b.Mask[1] = 2 },
		"mask at a start":   func(b *Batch) { b.Mask[2] = 1 },
		"advantages length": func(b *Batch) { b.Advantages = b.Advantages[:2] },
		"no advantages":     func(b *Batch) { b.Advantages = nil },
		"no logprobs":       func(b *Batch) { b.LogProbs = nil },
		"advantage NaN":     func(b *Batch) { b.Advantages[1] = float32(math.NaN()) },
		"logprob Inf":       func(b *Batch) { b.LogProbs[1] = float32(math.Inf(-1)) },
		"temperature 0":     func(b *Batch) { b.Temperatures[1] = 0 },
		"temperature NaN":   func(b *Batch) { b.Temperatures[1] = float32(math.NaN()) },
	} {
		b := good()
		spoil(b)
		if _, err := l.Accumulate(b, DefaultRL(1)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// TestNothingToTrain: a micro-batch without a masked token, as packers fill up with, adds nothing.
func TestNothingToTrain(t *testing.T) {
	l := NewLearner(newModel(t, tinyConfig(13), 1))
	for _, b := range []*Batch{{}, {Tokens: []int32{1, 2, 3}, SeqLens: []int32{2, 1}, Mask: make([]byte, 3)}} {
		m, err := l.Accumulate(b, DefaultRL(0))
		if err != nil || m != (Metrics{}) {
			t.Errorf("metrics %+v, %v", m, err)
		}
		if _, _, err := l.Score(b); err != nil {
			t.Error(err)
		}
	}
	for i, g := range l.sum {
		if g != 0 {
			t.Fatalf("weight %d has gradient %g", i, g)
		}
	}
}
