package packer

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"
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

// A batchOf is samples to plan for.
type batchOf struct {
	lengths         []int
	cost            []int64
	capacity, ranks int
}

// benchmarked are the batches that are measured.
func benchmarked(n, ranks int) batchOf {
	lengths := logNormal(1, n, 32768)
	return batchOf{lengths, newFlops(DefaultConfig()).of(lengths), 32768, ranks}
}

// A balance says what of a plan costs time, each 1 (padding 0) at best: the total of the most loaded rank over the mean,
// what the slowest micro-batches of the micro-steps add up to over what mean ones do, and the share of the micro-batches
// that holds no token.
type balance struct{ ranks, microSteps, padding float64 }

func (b batchOf) balance(planned [][][]int) balance {
	var most, waited int64
	for _, rank := range planned {
		sum := int64(0)
		for _, bin := range rank {
			sum += sumOf(b.cost, bin)
		}
		most = max(most, sum)
	}
	for j := range planned[0] {
		slowest := int64(0)
		for _, rank := range planned {
			slowest = max(slowest, sumOf(b.cost, rank[j]))
		}
		waited += slowest
	}
	return b.of(len(planned[0]), most, waited)
}

func (b batchOf) of(count int, most, waited int64) balance {
	all := upTo(len(b.lengths))
	mean := float64(sumOf(b.cost, all)) / float64(b.ranks)
	return balance{float64(most) / mean, float64(waited) / mean, 1 - float64(sumOf(b.lengths, all))/float64(b.ranks*count*b.capacity)}
}

// limit is a balance that no plan of these samples betters, with the fewest micro-batches that hold all tokens. The rank of the
// costliest sample has that at least. For the micro-steps it is the best, over k, of what the first k wait for at least (no
// two samples longer than half a micro-batch share one), and of what is left for the others once those k are worth as
// much as can be.
func (b batchOf) limit() balance {
	all, count := byLength(b.lengths), b.count()
	if b.ranks == 1 {
		total := sumOf(b.cost, all)
		return b.of(count, total, total)
	}
	mean := (sumOf(b.cost, all) + int64(b.ranks) - 1) / int64(b.ranks)
	waited, forced := mean, int64(0)
	for k := 1; k <= count; k++ {
		if i := (k - 1) * b.ranks; i < len(all) && 2*b.lengths[all[i]] > b.capacity {
			forced += b.cost[all[i]]
		}
		waited = max(waited, forced+mean-int64(math.Ceil(b.worth(all, k*b.ranks)/float64(b.ranks))))
	}
	return b.of(count, max(mean, b.cost[all[0]]), waited)
}

// worth is the most that so many micro-batches can cost: no more than if they held the costliest tokens, which are those
// of the longest samples, and no more than if each had one of the longest samples, and beside it only tokens as costly as
// those of the longest one that fits there and is no longer.
func (b batchOf) worth(byLength []int, bins int) float64 {
	tokens, apart := 0.0, 0.0
	room := bins * b.capacity
	for k, i := range byLength {
		taken := min(room, b.lengths[i])
		room -= taken
		tokens += b.costly(i) * float64(taken)
		if k < bins {
			apart += float64(b.cost[i])
			left := b.capacity - b.lengths[i]
			if beside := slices.IndexFunc(byLength[k:], func(j int) bool { return b.lengths[j] <= left }); beside >= 0 {
				apart += b.costly(byLength[k+beside]) * float64(left)
			}
		}
	}
	return min(tokens, apart)
}

// costly is the cost of a token of a sample.
func (b batchOf) costly(i int) float64 { return float64(b.cost[i]) / float64(b.lengths[i]) }

// count is the least number of micro-batches of a rank that have room for all tokens.
func (b batchOf) count() int {
	bins := (sumOf(b.lengths, upTo(len(b.lengths))) + b.capacity - 1) / b.capacity
	return (bins + b.ranks - 1) / b.ranks
}

// cpuTime is what the process has used, of all its threads.
func cpuTime(b *testing.B) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// forEachBatch runs a benchmark for every number of samples and of ranks; it reports the balance that is returned,
// how much the most loaded rank and the slowest micro-batches are above the mean.
func forEachBatch(b *testing.B, run func(b *testing.B, of batchOf) balance) {
	for _, n := range []int{512, 2048, 8192} {
		for _, ranks := range []int{1, 8, 64} {
			b.Run(fmt.Sprintf("samples=%d/ranks=%d", n, ranks), func(b *testing.B) {
				got := run(b, benchmarked(n, ranks))
				b.ReportMetric(100*(got.ranks-1), "%rank-above-mean")
				b.ReportMetric(100*(got.microSteps-1), "%waiting")
				b.ReportMetric(100*got.padding, "%padding")
			})
		}
	}
}

// BenchmarkPlan plans steps of log-normal lengths.
func BenchmarkPlan(b *testing.B) {
	forEachBatch(b, func(b *testing.B, of batchOf) balance {
		var planned [][][]int
		began := cpuTime(b)
		for b.Loop() {
			planned = plan(of.lengths, of.cost, of.capacity, of.ranks)
		}
		b.ReportMetric((cpuTime(b)-began).Seconds()*1e3/float64(b.N), "CPU-ms/op")
		return of.balance(planned)
	})
}

// BenchmarkPeerPlan is what the peer's algorithm makes of the same lengths. Its time is not the peer's (peerPlan).
func BenchmarkPeerPlan(b *testing.B) {
	forEachBatch(b, func(b *testing.B, of batchOf) balance {
		var planned [][][]int
		for b.Loop() {
			planned = peerPlan(of.lengths, of.cost, of.capacity, of.ranks)
		}
		return of.balance(planned)
	})
}

// BenchmarkPlanLimit is what no algorithm can better.
func BenchmarkPlanLimit(b *testing.B) {
	forEachBatch(b, func(b *testing.B, of batchOf) balance {
		var best balance
		for b.Loop() {
			best = of.limit()
		}
		return best
	})
}
