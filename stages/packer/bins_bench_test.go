package packer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
)

// logNormal is n lengths as rollouts have them: log-normal with a mean near 4,096, cut at limit.
func logNormal(seed uint64, n, limit int) []int {
	rng := rand.New(rand.NewPCG(seed, 0))
	lengths := make([]int, n)
	for i := range lengths {
		lengths[i] = min(limit, max(1, int(math.Exp(math.Log(4096)-0.5+rng.NormFloat64()))))
	}
	return lengths
}

// spread is the most loaded rank's total over the mean, the same for micro-steps (what the slowest bins add up to over
// what the mean ones do), and the share of the bins that holds no tokens.
func spread(planned [][][]int, lengths []int, cost []int64, capacity int) (ranks, microSteps, padding float64) {
	var most, total, waited int64
	tokens := 0
	for _, rank := range planned {
		sum := int64(0)
		for _, bin := range rank {
			sum += sumOf(cost, bin)
			tokens += sumOf(lengths, bin)
		}
		most, total = max(most, sum), total+sum
	}
	for j := range planned[0] {
		slowest := int64(0)
		for _, rank := range planned {
			slowest = max(slowest, sumOf(cost, rank[j]))
		}
		waited += slowest
	}
	n := float64(len(planned))
	return float64(most) * n / float64(total), float64(waited) * n / float64(total),
		1 - float64(tokens)/(n*float64(len(planned[0])*capacity))
}

func BenchmarkPlan(b *testing.B) {
	const capacity = 32768
	for _, n := range []int{512, 2048, 8192} {
		for _, ranks := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("samples=%d/ranks=%d", n, ranks), func(b *testing.B) {
				lengths := logNormal(1, n, capacity)
				cost := newFlops(DefaultConfig()).of(lengths)
				var planned [][][]int
				for b.Loop() {
					planned = plan(lengths, cost, capacity, ranks)
				}
				rankSpread, stepSpread, padding := spread(planned, lengths, cost, capacity)
				b.ReportMetric(rankSpread, "ranks-max/mean")
				b.ReportMetric(stepSpread, "steps-max/mean")
				b.ReportMetric(100*padding, "%padding")
			})
		}
	}
}
