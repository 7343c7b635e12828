package lm

import "math"

// Policy is the term of the rl loss that carries the advantage. Each of DPPO, IPO, PPO, GSPO and TIS limits in its way what
// a token can do once the trained policy has moved away from the one that sampled it.
type Policy interface {
	// term is the loss of a token and its derivative by π. beyond is 1 if the token lies beyond the upper bound, −1 if it
	// lies beyond the lower one, else 0.
	term(t policyToken) (loss, dLogProb float64, beyond int)
}

// policyToken is what a policy term sees of a token.
type policyToken struct {
	adv, logProb, mu float64 // A, π and μ
	ratio            float64 // ρ
	whole            float64 // geometric mean of ρ over the sequence
}

// DPPO is −A·ρ, but 0 where A > 0 and d > MaskHigh, or A ≤ 0 and d < −MaskLow, with d = e^π − e^μ (arXiv:2602.04879).
type DPPO struct{ MaskHigh, MaskLow float64 }

func (p DPPO) term(t policyToken) (loss, dLogProb float64, beyond int) {
	switch d := math.Exp(t.logProb) - math.Exp(t.mu); {
	case t.adv > 0 && d > p.MaskHigh:
		return 0, 0, 1
	case t.adv <= 0 && d < -p.MaskLow:
		return 0, 0, -1
	}
	return -t.adv * t.ratio, -t.adv * t.ratio, 0
}

// IPO is −A·ρ, but 0 where |d| > Mask, with d as in DPPO, whatever the advantage.
type IPO struct{ Mask float64 }

func (p IPO) term(t policyToken) (loss, dLogProb float64, beyond int) {
	switch d := math.Exp(t.logProb) - math.Exp(t.mu); {
	case d > p.Mask:
		return 0, 0, 1
	case d < -p.Mask:
		return 0, 0, -1
	}
	return -t.adv * t.ratio, -t.adv * t.ratio, 0
}

// PPO is −min(A·ρ, A·clip(ρ, 1 − ClipLow, 1 + ClipHigh)): a token that is clipped has no gradient (arXiv:1707.06347; with
// ClipHigh above ClipLow, arXiv:2503.14476).
type PPO struct{ ClipLow, ClipHigh float64 }

func (p PPO) term(t policyToken) (loss, dLogProb float64, beyond int) {
	return clipped(t.adv, t.ratio, p.ClipLow, p.ClipHigh)
}

// GSPO is PPO with the geometric mean of ρ over the sequence in place of ρ, so that a sequence is clipped as a whole
// (arXiv:2507.18071; the form for tokens with advantages of their own, its section 4.3: what a token's gradient is
// multiplied by is the sequence's ratio). As every token counts the same in the step, a sequence counts by its length.
type GSPO struct{ ClipLow, ClipHigh float64 }

func (p GSPO) term(t policyToken) (loss, dLogProb float64, beyond int) {
	return clipped(t.adv, t.whole, p.ClipLow, p.ClipHigh)
}

func clipped(adv, ratio, low, high float64) (loss, dLogProb float64, beyond int) {
	switch {
	case adv > 0 && ratio > 1+high:
		return -adv * (1 + high), 0, 1
	case adv < 0 && ratio < 1-low:
		return -adv * (1 - low), 0, -1
	}
	return -adv * ratio, -adv * ratio, 0
}

// TIS is −A·min(ρ, Cap)·π, in which min(ρ, Cap) counts as a constant: truncated importance sampling, which unlike clipping
// keeps the gradient of every token (arXiv:2505.24034). A capped token lies beyond the upper bound.
type TIS struct{ Cap float64 }

func (p TIS) term(t policyToken) (loss, dLogProb float64, beyond int) {
	weight := t.ratio
	if weight > p.Cap {
		weight, beyond = p.Cap, 1
	}
	return -t.adv * weight * t.logProb, -t.adv * weight, beyond
}
