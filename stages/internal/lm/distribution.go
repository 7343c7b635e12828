package lm

import "math"

// distribution is the softmax of logits divided by a temperature. Sampling, scoring and training all use it, so that
// they agree on every bit.
type distribution struct {
	p      []float32 // probabilities
	scale  float32   // 1/temperature
	top    float32   // the largest scaled logit
	logSum float64   // log Σ e^(scaled logit − top)
}

// set makes d the distribution of logits at temperature.
func (d *distribution) set(logits []float32, temperature float32) {
	d.p = grow(d.p, len(logits))
	d.scale = 1 / temperature
	d.top = float32(math.Inf(-1))
	for i, v := range logits {
		z := v * d.scale
		d.p[i] = z
		if z > d.top {
			d.top = z
		}
	}
	for i, z := range d.p {
		d.p[i] = z - d.top
	}
	exps(d.p)
	var sum float64
	for _, e := range d.p {
		sum += float64(e)
	}
	d.logSum = math.Log(sum)
	inv := float32(1 / sum)
	for i := range d.p {
		d.p[i] *= inv
	}
}

// logProb is the log-probability of a token.
func (d *distribution) logProb(logits []float32, token int32) float32 {
	return float32(float64(logits[token]*d.scale-d.top) - d.logSum)
}

// entropy is −Σ p·log p.
func (d *distribution) entropy(logits []float32) float64 {
	var sum float64
	for i, p := range d.p {
		sum += float64(p) * float64(logits[i]*d.scale-d.top)
	}
	return d.logSum - sum
}

// backward overwrites logits with the gradient of a loss whose derivatives by the log-probability of token and by the
// entropy are given: with z the scaled logits, dlogp/dz = 1[token] − p and dH/dz = −p·(log p + H).
func (d *distribution) backward(logits []float32, token int32, dLogProb, dEntropy, entropy float64) {
	for i, p := range d.p {
		logP := float64(logits[i]*d.scale-d.top) - d.logSum
		g := -float64(p) * (dLogProb + dEntropy*(logP+entropy))
		if int32(i) == token {
			g += dLogProb
		}
		logits[i] = float32(g) * d.scale
	}
}
