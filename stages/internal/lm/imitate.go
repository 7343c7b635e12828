package lm

import (
	"errors"
	"math"
)

// CE is the cross-entropy component, over the tokens with a CEWeight w other than 0:
//
//	loss = Σ −w·π / Tokens
type CE struct {
	// Tokens is the number of such tokens in the whole step, over all micro-batches and ranks.
	Tokens int
}

// Validate checks that the weights are finite.
func (c CE) Validate(b *Batch) error {
	tokens := 0
	for _, w := range b.CEWeights {
		if w == 0 {
			continue
		}
		tokens++
		if !finite(w) {
			return errors.New("a weight of the ce loss is not finite")
		}
	}
	return checkCounted("ce", tokens, c.Tokens)
}

// Loss implements Component.
func (c CE) Loss(s *Sequence, m *Metrics) {
	n := float64(max(c.Tokens, 1))
	for k, i := range s.Tokens {
		w := s.Batch.ceWeight(i)
		if w == 0 {
			continue
		}
		m.CETokens++
		m.CENLL -= s.LogProbs[k]
		m.CELoss -= w * s.LogProbs[k] / n
		s.DLogProbs[k] -= w / n
	}
}

// RefKL is the component that draws the policy to a teacher, over the tokens with a RefKLWeight w other than 0: with π_ref
// the teacher's log-probability, and μ, r, ρ and d as in RL and DPPO,
//
//	loss = Σ w·[ −keep·g·ρ + KLTau·r² ] / Tokens,   g = π_ref − π as a constant
//
// where keep is 0 if d < −MaskLow, else 1: the policy gradient whose advantage is what the teacher thinks better of the
// token than the policy does. On-policy its expectation is the gradient of the policy's divergence from the teacher.
type RefKL struct {
	MaskLow, KLTau float64
	// Tokens is the number of such tokens in the whole step, over all micro-batches and ranks.
	Tokens int
}

// Validate checks that both log-probabilities are there and finite.
func (c RefKL) Validate(b *Batch) error {
	tokens := 0
	for i, w := range b.RefKLWeights {
		if w == 0 {
			continue
		}
		tokens++
		if b.RefLogProbs == nil || b.LogProbs == nil {
			return errors.New("the ref_kl loss needs the log-probabilities of the teacher and of the policy that sampled")
		}
		if !finite(w) || !finite(b.RefLogProbs[i]) || !finite(b.LogProbs[i]) {
			return errors.New("a weight of the ref_kl loss, or a log-probability of the teacher or of the policy that sampled, is not finite")
		}
	}
	return checkCounted("ref_kl", tokens, c.Tokens)
}

// Loss implements Component.
func (c RefKL) Loss(s *Sequence, m *Metrics) {
	n := float64(max(c.Tokens, 1))
	for k, i := range s.Tokens {
		w := s.Batch.refKLWeight(i)
		if w == 0 {
			continue
		}
		mu, gain := float64(s.Batch.LogProbs[i]), float64(s.Batch.RefLogProbs[i])-s.LogProbs[k]
		r := s.LogProbs[k] - mu
		loss, dLogProb := c.KLTau*r*r, 2*c.KLTau*r
		if d := math.Exp(s.LogProbs[k]) - math.Exp(mu); !(d < -c.MaskLow) {
			loss -= gain * math.Exp(r)
			dLogProb -= gain * math.Exp(r)
		}
		m.RefKLTokens++
		m.TeacherKL -= gain
		m.RefKLLoss += w * loss / n
		s.DLogProbs[k] += w * dLogProb / n
	}
}
