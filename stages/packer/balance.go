package packer

import (
	"cmp"
	"slices"
)

// plan packs items of the given lengths and costs into bins of the given capacity and gives each rank equally many, the
// fewest that first-fit-decreasing can do with: plan[rank][index] is the items of a bin, in rising order, and empty in a
// dummy. Deterministic.
//
// Two things cost time where ranks wait for each other: the total of the slowest rank, and, where they meet in every
// micro-step (sharded training), the slowest bin of each index. So bins of about equal cost are put into one micro-step
// and made more equal by moving items between them. Each micro-step also makes up for what the ranks are apart after
// those before it, and what is then left is moved between ranks (TestCostOfPlans says how near that comes).
func plan(lengths []int, cost []int64, capacity, ranks int) [][][]int {
	var dealt [][][]int
	if ranks == 1 {
		dealt = [][][]int{fill(lengths, cost, capacity)}
	} else {
		dealt = deal(microSteps(spreadRoom(lengths, capacity, ranks), cost, ranks), ranks, lengths, cost, capacity)
		newLeveler(dealt, lengths, cost, capacity).run()
	}
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

// deal gives every rank one bin of each micro-step, the costliest to the rank that has the least so far, after making the
// bins as equal as the ranks shall be: each is to make up for its share of what its rank has more or less than others.
func deal(steps [][][]int, ranks int, lengths []int, cost []int64, capacity int) [][][]int {
	dealt, total, ahead := make([][][]int, ranks), make([]int64, ranks), make([]int64, ranks)
	byLoad := upTo(ranks)
	for j, step := range steps {
		slices.SortFunc(byLoad, func(a, b int) int {
			return cmp.Or(cmp.Compare(total[a], total[b]), a-b)
		})
		for i, r := range byLoad {
			ahead[i] = total[r] / int64(len(steps)-j)
		}
		equalize(step, ahead, lengths, cost, capacity)
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
