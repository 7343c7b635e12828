package lm

import (
	"math"
	"testing"
)

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(1+math.Abs(b)) }

// lossOf is what a component says of a sequence of tokens with the probabilities pi, all of them in the loss.
func lossOf(c Component, b *Batch, entropy float64, pi ...float64) (m Metrics, s Sequence) {
	s.reset(b)
	for i, p := range pi {
		s.add(i, math.Log(p), entropy)
	}
	c.Loss(&s, &m)
	return m, s
}

func logs(p ...float64) (l []float32) {
	for _, v := range p {
		l = append(l, float32(math.Log(v)))
	}
	return l
}

// figure is a value and what it should be.
type figure struct {
	name      string
	got, want float64
}

func checkFigures(t *testing.T, figures ...figure) {
	t.Helper()
	for _, x := range figures {
		if math.Abs(x.got-x.want) > 2e-7 {
			t.Errorf("%s = %.9f, want %.9f", x.name, x.got, x.want)
		}
	}
}

// TestRL checks value and derivatives of single tokens against figures worked out by hand from the formulas.
func TestRL(t *testing.T) {
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
			const entropy = 0.7
			c := DefaultRL(4)
			c.EntropyCoef = 0.1
			m, s := lossOf(c, &Batch{Mask: []byte{1}, Advantages: []float32{float32(test.adv)}, LogProbs: logs(test.mu)}, entropy, test.pi)
			checkFigures(t,
				figure{"loss", m.Loss(), (test.loss - 0.1*entropy) / 4}, figure{"dLogProb", s.DLogProbs[0], test.dLogProb / 4},
				figure{"dEntropy", s.DEntropies[0], -0.1 / 4}, figure{"ratio", m.MeanRatio(), test.ratio},
				figure{"mismatch KL", m.MeanMismatchKL(), test.kl}, figure{"masked KL", m.MeanMaskedKL(), test.unmet},
				figure{"masked share", m.MaskedShare(), float64(test.high + test.low)})
			if m.MaskedHigh != test.high || m.MaskedLow != test.low {
				t.Errorf("masked high %d, low %d, want %d, %d", m.MaskedHigh, m.MaskedLow, test.high, test.low)
			}
		})
	}
}

// TestPolicies does so for the other policy terms. A sequence has a token of the probability given and one, with an
// advantage of 0, whose ratio is other.
func TestPolicies(t *testing.T) {
	for _, test := range []struct {
		name           string
		policy         Policy
		pi, mu, adv    float64
		other          float64
		loss, dLogProb float64
		high, low      int
	}{
		{"ipo, kept", IPO{0.1}, 0.55, 0.5, 2, 1, -2.2, -2.2, 0, 0},
		{"ipo, masked high against the advantage", IPO{0.1}, 0.7, 0.5, -2, 1, 0, 0, 1, 0},
		{"ipo, masked low against the advantage", IPO{0.1}, 0.3, 0.5, 2, 1, 0, 0, 0, 1},
		{"ppo, kept", PPO{0.2, 0.3}, 0.62, 0.5, 2, 1, -2.48, -2.48, 0, 0},
		{"ppo, clipped high", PPO{0.2, 0.3}, 0.7, 0.5, 2, 1, -2.6, 0, 1, 0},
		{"ppo, rise against", PPO{0.2, 0.3}, 0.7, 0.5, -2, 1, 2.8, 2.8, 0, 0},
		{"ppo, clipped low", PPO{0.2, 0.3}, 0.3, 0.5, -2, 1, 1.6, 0, 0, 1},
		{"ppo, fall against", PPO{0.2, 0.3}, 0.3, 0.5, 2, 1, -1.2, -1.2, 0, 0},
		// ρ = 4 and 1: the sequence's ratio is 2.
		{"gspo, clipped high", GSPO{0.2, 0.5}, 0.8, 0.2, 3, 1, -4.5, 0, 1, 0},
		{"gspo, kept", GSPO{0.2, 1.5}, 0.8, 0.2, 3, 1, -6, -6, 0, 0},
		{"gspo, rise against", GSPO{0.2, 0.5}, 0.8, 0.2, -3, 1, 6, 6, 0, 0},
		// ρ = 4 and 1/4: the tokens moved, the sequence did not.
		{"gspo, on the whole on policy", GSPO{0.2, 0.5}, 0.8, 0.2, 3, 0.25, -3, -3, 0, 0},
		// ρ = 1/4 and 1: 1/2.
		{"gspo, clipped low", GSPO{0.2, 0.5}, 0.2, 0.8, -3, 1, 2.4, 0, 0, 1},
		// ln 0.6 = −0.510826
		{"tis, below the cap", TIS{1.5}, 0.6, 0.5, 2, 1, 2.4 * 0.5108256, -2.4, 0, 0},
		// ln 0.8 = −0.223144
		{"tis, capped", TIS{1.5}, 0.8, 0.5, 2, 1, 3 * 0.2231436, -3, 1, 0},
		{"tis, a small ratio stays", TIS{1.5}, 0.1, 0.5, -2, 1, -0.4 * 2.3025851, 0.4, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := &Batch{Mask: []byte{1, 0, 1}, Advantages: []float32{float32(test.adv), 7, 0}, LogProbs: logs(test.mu, 1e-9, 0.4/test.other)}
			m, s := lossOf(RL{Policy: test.policy, Tokens: 5}, b, 0, test.pi, 0.5, 0.4)
			checkFigures(t, figure{"loss", m.Loss(), test.loss / 5}, figure{"dLogProb", s.DLogProbs[0], test.dLogProb / 5},
				figure{"of a token that is not in it", s.DLogProbs[1], 0}, figure{"of an advantage of 0", s.DLogProbs[2], 0})
			if m.RLTokens != 2 || m.MaskedHigh != test.high || m.MaskedLow != test.low {
				t.Errorf("%d tokens, %d masked high, %d low; want 2, %d, %d", m.RLTokens, m.MaskedHigh, m.MaskedLow, test.high, test.low)
			}
		})
	}
}

// TestImitation does so for cross-entropy and the divergence from a teacher.
func TestImitation(t *testing.T) {
	b := &Batch{Mask: []byte{1, 0, 0}, CEWeights: []float32{0, 2, 0}}
	m, s := lossOf(CE{Tokens: 4}, b, 0.7, 0.5, 0.25, 0.5)
	checkFigures(t, figure{"ce", m.Loss(), 2 * 1.3862944 / 4}, figure{"ce, dLogProb", s.DLogProbs[1], -0.5}, figure{"ce, NLL", m.MeanCENLL(), 1.3862944},
		figure{"ce, another's token", s.DLogProbs[0], 0}, figure{"ce, dEntropy", s.DEntropies[1], 0})
	if m.CETokens != 1 || m.RLTokens != 0 {
		t.Errorf("ce: %+v", m)
	}

	b = &Batch{
		Mask: []byte{1, 0, 0}, RefKLWeights: []float32{0, 0.5, 0.5}, LogProbs: logs(0.5, 0.4, 0.5), RefLogProbs: logs(0.5, 0.8, 0.8),
	}
	m, s = lossOf(RefKL{MaskLow: 0.2, KLTau: 1e-3, Tokens: 5}, b, 0.7, 0.5, 0.5, 0.1)
	// Token 1: g = ln 1.6 = 0.4700036, ρ = 1.25, r = 0.2231436, r² = 0.0497930. Token 2: d = −0.4, so only r² = 2.5902904 stays.
	kept, masked := 0.5*(-0.4700036*1.25+1e-3*0.0497930)/5, 0.5*1e-3*2.5902904/5
	checkFigures(t, figure{"ref_kl", m.Loss(), kept + masked},
		figure{"ref_kl, kept", s.DLogProbs[1], 0.5 * (-0.4700036*1.25 + 2e-3*0.2231436) / 5},
		figure{"ref_kl, masked", s.DLogProbs[2], -0.5 * 2e-3 * 1.6094379 / 5}, figure{"ref_kl, another's token", s.DLogProbs[0], 0},
		figure{"divergence from the teacher", m.MeanTeacherKL(), (-0.4700036 - 2.0794415) / 2})
	if m.RefKLTokens != 2 || m.RLTokens != 0 {
		t.Errorf("ref_kl: %+v", m)
	}
}

// TestTokensInTheLoss: a token is scored and counted if it is in any component, and sampled ones are told apart.
func TestTokensInTheLoss(t *testing.T) {
	b := randomBatch(NewRNG(1), 13, 0, 6)
	b.Mask[1] = 1
	b.CEWeights, b.RefKLWeights, b.RefLogProbs = []float32{0, 0, 0.1, 0, 0, 0}, []float32{0, 0, 0, 0.1, 0, 0}, make([]float32, 6)
	l := newLearner(newModel(t, tinyConfig(13), 1))
	logProbs, _, err := l.Score(b)
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range logProbs {
		if in := i >= 1 && i <= 3; (p != 0) != in {
			t.Errorf("token %d has log-probability %g", i, p)
		}
	}
	m, err := l.Accumulate(b, b.all()...)
	if err != nil {
		t.Fatal(err)
	}
	nll := -float64(logProbs[1]) - float64(logProbs[3])
	if m.Tokens != 3 || m.Sampled != 2 || m.RLTokens != 1 || m.CETokens != 1 || m.RefKLTokens != 1 || math.Abs(m.NLL-nll) > 1e-9 {
		t.Errorf("%+v, the NLL of the sampled tokens is %g", m, nll)
	}
}

// TestMetricsOfNothing: a mean over no token is 0.
func TestMetricsOfNothing(t *testing.T) {
	var m Metrics
	for _, v := range []float64{m.MeanNLL(), m.MeanEntropy(), m.MeanRatio(), m.MeanMismatchKL(), m.MeanMaskedKL(), m.MaskedShare(), m.MeanCENLL(), m.MeanTeacherKL()} {
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
			Advantages: []float32{0, 1, 0}, LogProbs: []float32{0, -1, 0}, Temperatures: []float32{0, 1, 0},
			CEWeights: []float32{0, 1, 0}, RefKLWeights: []float32{0, 1, 0}, RefLogProbs: []float32{0, -1, 0}}
	}
	all := []Component{DefaultRL(1), CE{Tokens: 1}, RefKL{Tokens: 1}}
	l := NewLearner(newModel(t, tinyConfig(13), 1))
	if _, err := l.Accumulate(good(), all...); err != nil {
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
		"rl uncounted":      func(b *Batch) { b.SeqLens, b.Temperatures, b.Mask[2] = []int32{3}, nil, 1 },
		"ce length":         func(b *Batch) { b.CEWeights = b.CEWeights[:2] },
		"ce at a start":     func(b *Batch) { b.CEWeights[2] = 1 },
		"ce NaN":            func(b *Batch) { b.CEWeights[1] = float32(math.NaN()) },
		"ce temperature":    func(b *Batch) { imitating(b); b.RefKLWeights, b.Temperatures[1] = nil, 0 },
		"ce uncounted":      func(b *Batch) { b.SeqLens, b.Temperatures, b.CEWeights[2] = []int32{3}, nil, 1 },
		"ref_kl length":     func(b *Batch) { b.RefKLWeights = b.RefKLWeights[:2] },
		"ref_kl at a start": func(b *Batch) { b.RefKLWeights[2] = -1 },
		"ref_kl Inf":        func(b *Batch) { b.RefKLWeights[1] = float32(math.Inf(1)) },
		"ref_kl uncounted":  func(b *Batch) { b.SeqLens, b.Temperatures, b.RefKLWeights[2] = []int32{3}, nil, 1 },
		"no teacher":        func(b *Batch) { b.RefLogProbs = nil },
		"teacher NaN":       func(b *Batch) { b.RefLogProbs[1] = float32(math.NaN()) },
		"teacher length":    func(b *Batch) { b.RefLogProbs = b.RefLogProbs[:2] },
		"teacher alone":     func(b *Batch) { imitating(b); b.LogProbs = nil },
	} {
		b := good()
		spoil(b)
		if _, err := l.Accumulate(b, all...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// imitating takes component rl out of a batch.
func imitating(b *Batch) { b.Mask, b.Advantages = make([]byte, len(b.Tokens)), nil }

// TestNothingToTrain: a micro-batch without a token in the loss, as packers fill up with, adds nothing.
func TestNothingToTrain(t *testing.T) {
	l := NewLearner(newModel(t, tinyConfig(13), 1))
	for _, b := range []*Batch{{}, {Tokens: []int32{1, 2, 3}, SeqLens: []int32{2, 1}, Mask: make([]byte, 3)}} {
		m, err := l.Accumulate(b, DefaultRL(0), CE{}, RefKL{})
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
