package lm

import (
	"math/rand/v2"
	"slices"
)

// NewRNG is the random source of one request: the same seed gives the same draws, whatever else runs.
func NewRNG(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 0x9e3779b97f4a7c15)) }

// Sampler draws tokens. It is scratch for one goroutine; the zero value is ready.
type Sampler struct {
	dist  distribution
	order []int32
}

// Sample draws a token from softmax(logits/temperature), restricted to the smallest set of most probable tokens whose
// probabilities reach topP (1, or anything above, is no restriction). It returns the token's log-probability after
// temperature under the *unrestricted* distribution: with topP < 1 that is not the one it was drawn from, which is why
// training rollouts refuse it. Temperature 0 takes the most probable token (the first of equals) and gives its
// log-probability at temperature 1; it draws nothing from rng, which may be nil. It makes exactly one draw otherwise.
func (s *Sampler) Sample(logits []float32, temperature, topP float32, rng *rand.Rand) (token int32, logProb float32) {
	if temperature == 0 {
		for i, v := range logits {
			if v > logits[token] {
				token = int32(i)
			}
		}
		s.dist.set(logits, 1)
		return token, s.dist.logProb(logits, token)
	}
	s.dist.set(logits, temperature)
	u := rng.Float64()
	if topP < 1 {
		token = s.nucleus(u, float64(topP))
	} else {
		token = draw(s.dist.p, u)
	}
	return token, s.dist.logProb(logits, token)
}

// TokenLogProb is a token with its log-probability.
type TokenLogProb struct {
	Token   int32
	LogProb float32
}

// Top gives the n most probable tokens of the distribution that the last Sample, which was given the same logits, drew from
// (before top-p), the most probable first and of equals the first. Log-probabilities are as Sample gives them.
func (s *Sampler) Top(logits []float32, n int) []TokenLogProb {
	top := make([]TokenLogProb, 0, min(n, len(logits))+1)
	for i := range logits {
		if len(top) == n && logits[i] <= logits[top[n-1].Token] {
			continue
		}
		at := len(top)
		for at > 0 && logits[i] > logits[top[at-1].Token] {
			at--
		}
		top = slices.Insert(top, at, TokenLogProb{Token: int32(i)})
		top = top[:min(len(top), n)]
	}
	for i := range top {
		top[i].LogProb = s.dist.logProb(logits, top[i].Token)
	}
	return top
}

// draw inverts the cumulative distribution at u of the total; it never returns a token of probability 0.
func draw(p []float32, u float64) int32 {
	var total float64
	for _, v := range p {
		total += float64(v)
	}
	u *= total
	var token int32
	for i, v := range p {
		if v == 0 {
			continue
		}
		token = int32(i)
		if u -= float64(v); u < 0 {
			break
		}
	}
	return token
}

// nucleus draws from the most probable tokens that together reach topP; of equals the first comes first.
func (s *Sampler) nucleus(u, topP float64) int32 {
	p := s.dist.p
	s.order = grow(s.order, len(p))
	for i := range s.order {
		s.order[i] = int32(i)
	}
	slices.SortStableFunc(s.order, func(a, b int32) int {
		switch {
		case p[a] > p[b]:
			return -1
		case p[a] < p[b]:
			return 1
		}
		return 0
	})
	var reached float64
	n := 0
	for n < len(p) && (n == 0 || reached < topP) {
		reached += float64(p[s.order[n]])
		n++
	}
	u *= reached
	for _, t := range s.order[:n] {
		if u -= float64(p[t]); u < 0 {
			return t
		}
	}
	return s.order[n-1]
}
