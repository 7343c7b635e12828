package replay

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestDistribution(t *testing.T) {
	var d Distribution
	if d.Mean() != 0 || d.Std() != 0 || d.Zero() != 0 || d.Quantiles(0.5)[0] != 0 {
		t.Error("nothing is not zero")
	}
	d.Add(1, 3)
	d.Add(-3, 2)
	d.Add(float32(math.Copysign(0, -1)), 4)
	d.Add(0, 1)
	d.Add(5, 0)
	if d.N != 10 || d.Mean() != -0.3 || d.MeanAbs() != 0.9 || math.Abs(d.Std()-math.Sqrt(2.1-0.09)) > 1e-12 || d.Zero() != 0.5 {
		t.Errorf("%d values, mean %v, |mean| %v, deviation %v, zero %v", d.N, d.Mean(), d.MeanAbs(), d.Std(), d.Zero())
	}
	if got := d.Quantiles(0.1, 0.2, 0.3, 0.7, 0.71, 1); !slices.Equal(got, []float64{-3, -3, 0, 0, 1, 1}) {
		t.Errorf("quantiles %v", got)
	}
}

// However many values there are, memory is bounded and quantiles are right to one part in 100.
func TestDistributionOfManyValues(t *testing.T) {
	var d Distribution
	rng := rand.New(rand.NewPCG(1, 2))
	var all []float64
	for range 300_000 {
		v := float32(math.Exp(4 * rng.NormFloat64()))
		if rng.IntN(2) == 0 {
			v = -v
		}
		all = append(all, float64(v))
		d.Add(v, 1)
	}
	slices.Sort(all)
	if len(d.counts) > distinctValues || d.dropped == 0 {
		t.Fatalf("%d cells, %d bits dropped", len(d.counts), d.dropped)
	}
	qs := []float64{0.01, 0.2, 0.5, 0.8, 0.99}
	for i, got := range d.Quantiles(qs...) {
		if want := all[int(qs[i]*float64(len(all)))-1]; math.Abs(got-want) > 0.01*math.Abs(want) {
			t.Errorf("quantile %v is %v, want %v", qs[i], got, want)
		}
	}
}
