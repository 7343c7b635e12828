package packer

import (
	"cmp"
	"slices"
)

// plan packs items of the given lengths and costs into bins of the given capacity and gives each rank equally many:
// plan[rank][index] is the items of a bin, in rising order, and empty in a dummy.
//
// Two things cost time where ranks wait for each other: the total of the slowest rank, and, where they meet in every
// micro-step (sharded training), the slowest bin of each index. So bins of about equal cost are put into one micro-step,
// made more equal by exchanging items, and then dealt out so that the ranks' totals are equal, too. Deterministic.
//
// The totals of two ranks never differ by more than a full bin costs: dealing a row keeps the difference below what the
// row's bins differ by, or what it was, and every exchange brings two totals nearer to each other. Usually it is within a
// thousandth (TestPlanIsBalanced).
func plan(lengths []int, cost []int64, capacity, ranks int) [][][]int {
	steps := microSteps(fill(lengths, cost, capacity, ranks), cost, ranks)
	if ranks > 1 {
		for _, step := range steps {
			equalize(step, lengths, cost, capacity)
		}
	}
	dealt := deal(steps, cost, ranks)
	newLeveler(dealt, lengths, cost, capacity).run()
	for _, rank := range dealt {
		slices.SortStableFunc(rank, byCost(cost))
		for _, bin := range rank {
			slices.Sort(bin)
		}
	}
	return dealt
}

// microSteps sorts bins by falling cost and cuts them into rows of one bin per rank, which makes the sum over rows of
// the costliest bin as small as it can be for these bins.
func microSteps(bins [][]int, cost []int64, ranks int) [][][]int {
	slices.SortStableFunc(bins, byCost(cost))
	return slices.Collect(slices.Chunk(bins, ranks))
}

// deal gives every rank one bin of each micro-step: the costliest to the rank that has the least so far.
func deal(steps [][][]int, cost []int64, ranks int) [][][]int {
	dealt := make([][][]int, ranks)
	total := make([]int64, ranks)
	byLoad := upTo(ranks)
	for _, step := range steps {
		slices.SortStableFunc(step, byCost(cost))
		slices.SortFunc(byLoad, func(a, b int) int {
			return cmp.Or(cmp.Compare(total[a], total[b]), a-b)
		})
		for i, r := range byLoad {
			dealt[r] = append(dealt[r], step[i])
			total[r] += sumOf(cost, step[i])
		}
	}
	return dealt
}

// byCost orders bins by falling cost.
func byCost(cost []int64) func(a, b []int) int {
	return func(a, b []int) int { return cmp.Compare(sumOf(cost, b), sumOf(cost, a)) }
}

// upTo is the numbers from 0 to n-1.
func upTo(n int) []int {
	s := make([]int, n)
	for i := range s {
		s[i] = i
	}
	return s
}
