package packer

import (
	"cmp"
	"slices"
)

// closeEnough ends the search for exchanges: a bin within 1/2000 of the mean of its micro-step, a rank within 1/2000 of
// the mean of the ranks. Estimates of FLOPs are not worth more.
const closeEnough = 2000

// triedItems is the number of items of a bin that a search looks at: of more, some are as good as all. Up to triedPairs
// items, which offer little choice, pairs are tried, too.
const (
	triedItems = 24
	triedPairs = 16
)

// equalize lowers the cost of the costliest bin of a micro-step by exchanging items with the others, until it is close
// to the mean or no exchange helps. No bin grows beyond capacity.
func equalize(bins [][]int, lengths []int, cost []int64, capacity int) {
	loads, costs := make([]int, len(bins)), make([]int64, len(bins))
	total := int64(0)
	for i, bin := range bins {
		loads[i], costs[i] = sumOf(lengths, bin), sumOf(cost, bin)
		total += costs[i]
	}
	mean := total / int64(len(bins))
	partners := upTo(len(bins))
	for range 32 * len(bins) {
		hi := slices.Index(costs, slices.Max(costs))
		if costs[hi]-mean <= mean/closeEnough {
			return
		}
		slices.SortFunc(partners, func(a, b int) int {
			return cmp.Or(cmp.Compare(costs[a], costs[b]), a-b)
		})
		if !slices.ContainsFunc(partners, func(lo int) bool {
			gap := costs[hi] - costs[lo]
			give, take, left := exchange(parts(bins[hi], lengths, cost, true), parts(bins[lo], lengths, cost, true), limits{
				roomHi: capacity - loads[hi], roomLo: capacity - loads[lo], mostLo: gap, gap: gap,
			})
			if left == gap {
				return false
			}
			trade(&bins[hi], &bins[lo], give, take)
			loads[hi] += take.tokens - give.tokens
			loads[lo] += give.tokens - take.tokens
			costs[hi] += take.cost - give.cost
			costs[lo] += give.cost - take.cost
			return true
		}) {
			return
		}
	}
}

// A part is what of a bin may change places: nothing, an item, or two.
type part struct {
	items  []int
	tokens int
	cost   int64
}

func parts(bin, lengths []int, cost []int64, pairs bool) []part {
	all := []part{{}}
	stride := 1 + (len(bin)-1)/triedItems
	for k := 0; k < len(bin); k += stride {
		i := bin[k]
		all = append(all, part{bin[k : k+1 : k+1], lengths[i], cost[i]})
	}
	if !pairs || len(bin) > triedPairs {
		return all
	}
	for k, i := range bin {
		for _, j := range bin[:k] {
			all = append(all, part{[]int{i, j}, lengths[i] + lengths[j], cost[i] + cost[j]})
		}
	}
	return all
}

// limits of an exchange between two bins.
type limits struct {
	roomHi, roomLo int   // tokens each may gain
	mostLo         int64 // cost the cheaper one may gain
	gap            int64 // difference of costs that is to become small
}

// exchange finds the parts of a bin and of a cheaper one that should change places, and the difference of costs that
// this leaves: the gap itself where none helps.
func exchange(hi, lo []part, lim limits) (give, take part, left int64) {
	left = lim.gap
	for _, g := range hi {
		for _, t := range lo {
			moved, tokens := g.cost-t.cost, g.tokens-t.tokens
			if d := distance(lim.gap, 2*moved); d < left && moved <= lim.mostLo && tokens <= lim.roomLo && -tokens <= lim.roomHi {
				give, take, left = g, t, d
			}
		}
	}
	return give, take, left
}

func distance(a, b int64) int64 { return max(a-b, b-a) }

// trade lets parts of two bins change places.
func trade(hi, lo *[]int, give, take part) {
	*hi, *lo = append(remove(*hi, give), take.items...), append(remove(*lo, take), give.items...)
}

func remove(bin []int, p part) []int {
	return slices.DeleteFunc(slices.Clone(bin), func(i int) bool { return slices.Contains(p.items, i) })
}
