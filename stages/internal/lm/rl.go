package lm

import (
	"errors"
	"math"
)

// RL is the policy-gradient component: with π the log-probability, μ that of the policy that sampled, A the advantage,
// r = π − μ, ρ = e^r and d = e^π − e^μ,
//
//	loss = Σ [ −keep·AdvTau·A·ρ + KLTau·r² − EntropyCoef·entropy ] / Tokens
//
// where keep is 0 if A > 0 and d > MaskHigh, or A ≤ 0 and d < −MaskLow, else 1 (DPPO, arXiv:2602.04879; r² after
// arXiv:2602.02276). The r² and entropy terms are over all tokens, kept or not.
type RL struct {
	AdvTau, KLTau     float64
	MaskHigh, MaskLow float64
	EntropyCoef       float64
	// Tokens is the number of masked tokens in the whole step, over all micro-batches and ranks.
	Tokens int
}

// DefaultRL is prime-rl's default loss, without an entropy bonus, for a step of the given number of tokens.
func DefaultRL(tokens int) RL {
	return RL{AdvTau: 1, KLTau: 1e-3, MaskHigh: 0.2, MaskLow: 0.2, Tokens: tokens}
}

// Validate checks that advantages and behaviour log-probabilities are there and finite.
func (c RL) Validate(b *Batch) error {
	for i, on := range b.Mask {
		if on == 0 {
			continue
		}
		if b.Advantages == nil || b.LogProbs == nil {
			return errors.New("the rl loss needs advantages and the log-probabilities of the policy that sampled")
		}
		if a, mu := float64(b.Advantages[i]), float64(b.LogProbs[i]); math.IsNaN(a-a) || math.IsNaN(mu-mu) {
			return errors.New("an advantage or a sampled log-probability is not finite")
		}
	}
	return nil
}

// Term implements Component.
func (c RL) Term(b *Batch, i int, logProb, entropy float64, m *Metrics) (dLogProb, dEntropy float64) {
	n := float64(max(c.Tokens, 1))
	adv, mu := float64(b.Advantages[i]), float64(b.LogProbs[i])
	r := logProb - mu
	ratio := math.Exp(r)
	d := math.Exp(logProb) - math.Exp(mu)
	high, low := adv > 0 && d > c.MaskHigh, adv <= 0 && d < -c.MaskLow

	loss := c.KLTau*r*r - c.EntropyCoef*entropy
	dLogProb = 2 * c.KLTau * r
	m.PolicyTerms++
	m.Ratio += ratio
	switch kl := ratio - r - 1; {
	case high:
		m.MaskedHigh++
		m.MaskedKL += kl
	case low:
		m.MaskedLow++
		m.MaskedKL += kl
	default:
		m.MismatchKL += kl
		loss -= c.AdvTau * adv * ratio
		dLogProb -= c.AdvTau * adv * ratio
	}
	m.Loss += loss / n
	return dLogProb / n, -c.EntropyCoef / n
}
