package lm

import (
	"errors"
	"math"
)

// RL is the policy-gradient component, over the tokens with Mask 1: with π the log-probability, μ that of the policy that
// sampled, A the advantage, r = π − μ and ρ = e^r,
//
//	loss = Σ [ Policy(A, π, μ) + KLTau·r² − EntropyCoef·entropy ] / Tokens
//
// r² (after arXiv:2602.02276) and the entropy are over all tokens, also those beyond the bounds of the policy term.
type RL struct {
	Policy      Policy
	KLTau       float64
	EntropyCoef float64
	// Tokens is the number of tokens with Mask 1 in the whole step, over all micro-batches and ranks.
	Tokens int
}

// DefaultRL is prime-rl's default loss, without an entropy bonus, for a step of the given number of tokens.
func DefaultRL(tokens int) RL {
	return RL{Policy: DPPO{MaskHigh: 0.2, MaskLow: 0.2}, KLTau: 1e-3, Tokens: tokens}
}

// Validate checks that advantages and behaviour log-probabilities are there and finite.
func (c RL) Validate(b *Batch) error {
	tokens := 0
	for i, on := range b.Mask {
		if on == 0 {
			continue
		}
		tokens++
		if b.Advantages == nil || b.LogProbs == nil {
			return errors.New("the rl loss needs advantages and the log-probabilities of the policy that sampled")
		}
		if !finite(b.Advantages[i]) || !finite(b.LogProbs[i]) {
			return errors.New("an advantage or a sampled log-probability is not finite")
		}
	}
	return checkCounted("rl", tokens, c.Tokens)
}

// Loss implements Component.
func (c RL) Loss(s *Sequence, m *Metrics) {
	n := float64(max(c.Tokens, 1))
	whole := sequenceRatio(s)
	for k, i := range s.Tokens {
		if s.Batch.Mask[i] == 0 {
			continue
		}
		mu := float64(s.Batch.LogProbs[i])
		r := s.LogProbs[k] - mu
		ratio := math.Exp(r)
		policy, dPolicy, beyond := c.Policy.term(policyToken{float64(s.Batch.Advantages[i]), s.LogProbs[k], mu, ratio, whole})

		m.RLTokens++
		m.Ratio += ratio
		kl := ratio - r - 1
		switch {
		case beyond > 0:
			m.MaskedHigh++
			m.MaskedKL += kl
		case beyond < 0:
			m.MaskedLow++
			m.MaskedKL += kl
		default:
			m.MismatchKL += kl
		}
		m.RLLoss += (c.KLTau*r*r - c.EntropyCoef*s.Entropies[k] + policy) / n
		s.DLogProbs[k] += (2*c.KLTau*r + dPolicy) / n
		s.DEntropies[k] -= c.EntropyCoef / n
	}
}

// sequenceRatio is the geometric mean of ρ over the tokens with Mask 1.
func sequenceRatio(s *Sequence) float64 {
	sum, n := 0.0, 0
	for k, i := range s.Tokens {
		if s.Batch.Mask[i] == 1 {
			sum += s.LogProbs[k] - float64(s.Batch.LogProbs[i])
			n++
		}
	}
	return math.Exp(mean(sum, n))
}

func finite(v float32) bool { return v-v == 0 }
