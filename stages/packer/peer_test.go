package packer

import (
	"cmp"
	"math"
	"slices"
)

// peerPlan packs as the nearest peer does, as a yardstick on the same lengths: first-fit decreasing, bins split up to a
// multiple of the ranks, dealt by Karmarkar–Karp with equal counts, then bins of two ranks swapped while that lowers (most
// loaded rank, spread of the ranks). It knows no micro-steps; each rank's bins are put in falling order of cost, which
// suits it best. Where the peer's choice is not known, the costliest bin is split.
//
// What it finds is what counts, not how long it takes: unlike the peer's, its search looks only at swaps with the most or
// the least loaded rank, since no other can help.
func peerPlan(lengths []int, cost []int64, capacity, ranks int) [][][]int {
	tight := firstFitDecreasing(lengths, capacity)
	dealt := karmarkarKarp(split(tight, (len(tight)+ranks-1)/ranks*ranks, cost), cost, ranks)
	for swapBest(dealt, cost) {
	}
	for _, rank := range dealt {
		slices.SortStableFunc(rank, byCost(cost))
	}
	return dealt
}

// split brings the number of bins to want by splitting the costliest one in two equal halves, again and again; where
// every bin is down to one item, empty ones (dummies) fill up.
func split(bins [][]int, want int, cost []int64) [][]int {
	for len(bins) < want {
		costliest, most := -1, int64(-1)
		for i, bin := range bins {
			if c := sumOf(cost, bin); len(bin) > 1 && c > most {
				costliest, most = i, c
			}
		}
		if costliest < 0 {
			return append(bins, make([][]int, want-len(bins))...)
		}
		// Items are in falling order of length: each goes to the cheaper half.
		var half [2][]int
		var load [2]int64
		for _, item := range bins[costliest] {
			h := 0
			if load[1] < load[0] {
				h = 1
			}
			half[h] = append(half[h], item)
			load[h] += cost[item]
		}
		bins[costliest] = half[0]
		bins = append(bins, half[1])
	}
	return bins
}

// A division is bins dealt to ranks, equally many to each, the most loaded rank first.
type division struct {
	ranks [][][]int
	loads []int64
}

func (d division) spread() int64 { return d.loads[0] - d.loads[len(d.loads)-1] }

func (d division) sorted() division {
	order := upTo(len(d.loads))
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(d.loads[b], d.loads[a]) })
	var s division
	for _, k := range order {
		s.ranks, s.loads = append(s.ranks, d.ranks[k]), append(s.loads, d.loads[k])
	}
	return s
}

// karmarkarKarp divides each row of bins of similar cost among the ranks, then joins the two divisions of the widest
// spread, the most loaded rank of one with the least loaded of the other, until one is left.
func karmarkarKarp(bins [][]int, cost []int64, ranks int) [][][]int {
	var open []division
	for _, row := range microSteps(bins, cost, ranks) {
		var d division
		for _, bin := range row {
			d.ranks, d.loads = append(d.ranks, [][]int{bin}), append(d.loads, sumOf(cost, bin))
		}
		open = append(open, d)
	}
	for len(open) > 1 {
		slices.SortStableFunc(open, func(a, b division) int { return cmp.Compare(b.spread(), a.spread()) })
		a, b := open[0], open[1]
		for i := range ranks {
			a.ranks[i] = append(a.ranks[i], b.ranks[ranks-1-i]...)
			a.loads[i] += b.loads[ranks-1-i]
		}
		open = append(open[2:], a.sorted())
	}
	return open[0].ranks
}

// swapBest swaps the two bins that lower (most loaded rank, spread) the most, and reports whether any did.
func swapBest(dealt [][][]int, cost []int64) bool {
	costs, loads := make([][]int64, len(dealt)), make([]int64, len(dealt))
	for r, bins := range dealt {
		for _, bin := range bins {
			costs[r] = append(costs[r], sumOf(cost, bin))
		}
		loads[r] = sumOf(costs[r], upTo(len(bins)))
	}
	most, least := slices.Max(loads), slices.Min(loads)
	top, spread := most, most-least
	var first, second *[]int
	for _, a := range []int{slices.Index(loads, most), slices.Index(loads, least)} {
		for b := range dealt {
			if b == a {
				continue
			}
			highest, lowest := int64(0), int64(math.MaxInt64) // of the others
			for r, l := range loads {
				if r != a && r != b {
					highest, lowest = max(highest, l), min(lowest, l)
				}
			}
			for i, given := range costs[a] {
				for j, taken := range costs[b] {
					x, y := loads[a]-given+taken, loads[b]+given-taken
					t := max(highest, x, y)
					s := t - min(lowest, x, y)
					if t < top || t == top && s < spread {
						first, second, top, spread = &dealt[a][i], &dealt[b][j], t, s
					}
				}
			}
		}
	}
	if first == nil {
		return false
	}
	*first, *second = *second, *first
	return true
}
