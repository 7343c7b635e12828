package lm

import (
	"math"
	"testing"
)

// TestSampleFrequencies: tokens come as often as their probability after temperature says, and the log-probability that
// is returned is the one of the unrestricted distribution.
func TestSampleFrequencies(t *testing.T) {
	logits := []float32{2, 0, 1, -1, float32(math.Inf(-1)), 0.5}
	for _, test := range []struct {
		temperature, topP float32
		allowed           int // tokens that can come, in order of probability
	}{{1, 1, 5}, {0.5, 1, 5}, {2, 1, 5}, {1, 0.6, 2}, {1, 0.001, 1}} {
		var sum float64
		p := make([]float64, len(logits))
		for i, v := range logits {
			p[i] = math.Exp(float64(v / test.temperature))
			sum += p[i]
		}
		kept := 0.0
		for _, i := range []int{0, 2, 5, 1, 3}[:test.allowed] {
			kept += p[i] / sum
		}
		const n = 40000
		var counts [6]int
		var s Sampler
		rng := NewRNG(3)
		for range n {
			token, logProb := s.Sample(logits, test.temperature, test.topP, rng)
			counts[token]++
			if want := math.Log(p[token] / sum); math.Abs(float64(logProb)-want) > 1e-5 {
				t.Fatalf("token %d: log-probability %g, want %g", token, logProb, want)
			}
		}
		for rank, i := range []int{0, 2, 5, 1, 3, 4} {
			want := 0.0
			if rank < test.allowed {
				want = p[i] / sum / kept
			}
			if got := float64(counts[i]) / n; math.Abs(got-want) > 4*math.Sqrt(want*(1-want)/n) {
				t.Errorf("temperature %g, top-p %g: token %d comes with frequency %g, want %g", test.temperature, test.topP, i, got, want)
			}
		}
	}
}

// TestSampleGreedy takes the first of the largest and needs no random source.
func TestSampleGreedy(t *testing.T) {
	var s Sampler
	token, logProb := s.Sample([]float32{0, 1, 1}, 0, 1, nil)
	if want := -math.Log(2 + math.Exp(-1)); token != 1 || math.Abs(float64(logProb)-want) > 1e-6 {
		t.Errorf("greedy: token %d with %g, want 1 with %g", token, logProb, want)
	}
}

// TestSampleSeeds: a seed gives the same tokens again, another seed others.
func TestSampleSeeds(t *testing.T) {
	draw := func(seed uint64) (out []int32) {
		var s Sampler
		rng := NewRNG(seed)
		for range 50 {
			token, _ := s.Sample(make([]float32, 48), 1, 1, rng)
			out = append(out, token)
		}
		return out
	}
	same := func(a, b []int32) bool {
		for i := range a {
			if a[i] != b[i] {
				return false
			}
		}
		return true
	}
	if !same(draw(1), draw(1)) || same(draw(1), draw(2)) {
		t.Error("draws do not follow the seed")
	}
}

// TestExp32 compares with math.Exp over the whole range.
func TestExp32(t *testing.T) {
	for x := float32(-86.9); x < 88; x += 0.0173 {
		want := math.Exp(float64(x))
		if got := float64(exp32(x)); math.Abs(got-want) > 2.5e-7*want {
			t.Fatalf("exp(%g) = %g, want %g", x, got, want)
		}
	}
	for x, want := range map[float32]float32{0: 1, -200: 0, float32(math.Inf(-1)): 0, 100: float32(math.Inf(1))} {
		if got := exp32(x); got != want {
			t.Errorf("exp(%g) = %g, want %g", x, got, want)
		}
	}
	if got := exp32(float32(math.NaN())); got == got {
		t.Errorf("exp(NaN) = %g", got)
	}
}

// TestTop: the most probable tokens come with the log-probabilities that sampling them gives, of equals the first comes
// first, and what is sampled next does not change.
func TestTop(t *testing.T) {
	logits := []float32{2, 0, 1, -1, 1, float32(math.Inf(-1)), 0.5}
	for _, temperature := range []float32{0, 0.5, 1} {
		var plain, asked Sampler
		a, b := NewRNG(7), NewRNG(7)
		seen := map[int32]float32{}
		var top []TokenLogProb
		for range 2000 {
			token, logProb := asked.Sample(logits, temperature, 0.9, a)
			top = asked.Top(logits, 4)
			if want, lp := plain.Sample(logits, temperature, 0.9, b); token != want || logProb != lp {
				t.Fatalf("temperature %g: token %d (%g) with the top, %d (%g) without", temperature, token, logProb, want, lp)
			}
			seen[token] = logProb
		}
		for i, want := range []int32{0, 2, 4, 6} {
			lp, drawn := seen[want]
			if top[i].Token != want || drawn && top[i].LogProb != lp {
				t.Errorf("temperature %g: place %d has %+v, want token %d with %g", temperature, i, top[i], want, lp)
			}
		}
		if got := len(asked.Top(logits, 100)); got != len(logits) {
			t.Errorf("%d of %d tokens", got, len(logits))
		}
	}
}
