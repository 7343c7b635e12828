package packer

import (
	"cmp"
	"math"
	"slices"
)

// A leveler brings the total of the most loaded rank down to the mean. It prefers exchanges that make no micro-step
// slower; where none is left (a few samples so long that their ranks must shed others), it takes those that cost the
// micro-steps least. Of ranks that meet only at the end of a step, the slowest is what counts.
type leveler struct {
	dealt    [][][]int // bins by rank and index
	lengths  []int
	cost     []int64
	capacity int
	loads    [][]int   // tokens of each bin
	costs    [][]int64 // of each bin
	slowest  []int64   // cost of the costliest bin of each micro-step
	total    []int64   // of each rank
}

func newLeveler(dealt [][][]int, lengths []int, cost []int64, capacity int) *leveler {
	l := &leveler{
		dealt: dealt, lengths: lengths, cost: cost, capacity: capacity,
		loads: make([][]int, len(dealt)), costs: make([][]int64, len(dealt)),
		slowest: make([]int64, len(dealt[0])), total: make([]int64, len(dealt)),
	}
	for r, bins := range dealt {
		for j, bin := range bins {
			c := sumOf(cost, bin)
			l.loads[r] = append(l.loads[r], sumOf(lengths, bin))
			l.costs[r] = append(l.costs[r], c)
			l.slowest[j] = max(l.slowest[j], c)
			l.total[r] += c
		}
	}
	return l
}

// run levels until the most loaded rank is close to the mean or nothing helps.
func (l *leveler) run() {
	mean := sumOf(l.total, upTo(len(l.total))) / int64(len(l.total))
	for range 32 * len(l.total) {
		hi := slices.Index(l.total, slices.Max(l.total))
		if l.total[hi]-mean <= mean/closeEnough {
			return
		}
		partners := upTo(len(l.total))
		slices.SortFunc(partners, func(a, b int) int { return cmp.Or(cmp.Compare(l.total[a], l.total[b]), a-b) })
		if !slices.ContainsFunc(partners, func(r int) bool { return l.swapBins(hi, r) || l.exchangeItems(hi, r, false) }) &&
			!l.swapAcross(hi, mean) &&
			!slices.ContainsFunc(partners, func(r int) bool { return l.exchangeItems(hi, r, true) }) {
			return
		}
	}
}

// swapAcross lets rank hi exchange a bin for one of another micro-step. Of the exchanges that take at least half of
// what it has above the mean, it is the one that costs the micro-steps least.
func (l *leveler) swapAcross(hi int, mean int64) bool {
	limit := mean + (l.total[hi]-mean)/2
	rank, from, to, least := -1, 0, 0, int64(math.MaxInt64)
	for r := range l.total {
		for i, a := range l.costs[hi] {
			for j, b := range l.costs[r] {
				if max(l.total[hi]-a+b, l.total[r]+a-b) > limit {
					continue
				}
				if harm := max(0, b-l.slowest[i]) + max(0, a-l.slowest[j]); harm < least {
					rank, from, to, least = r, i, j, harm
				}
			}
		}
	}
	if rank < 0 {
		return false
	}
	moved := l.costs[hi][from] - l.costs[rank][to]
	l.dealt[hi][from], l.dealt[rank][to] = l.dealt[rank][to], l.dealt[hi][from]
	l.loads[hi][from], l.loads[rank][to] = l.loads[rank][to], l.loads[hi][from]
	l.costs[hi][from], l.costs[rank][to] = l.costs[rank][to], l.costs[hi][from]
	l.total[hi], l.total[rank] = l.total[hi]-moved, l.total[rank]+moved
	l.slowest[from], l.slowest[to] = max(l.slowest[from], l.costs[hi][from]), max(l.slowest[to], l.costs[rank][to])
	return true
}

// swapBins brings the totals of two ranks nearer to each other by exchanging their bins of a micro-step.
func (l *leveler) swapBins(hi, lo int) bool {
	gap := l.total[hi] - l.total[lo]
	best, left := -1, gap-gap/8
	for j := range l.slowest {
		if d := distance(gap, 2*(l.costs[hi][j]-l.costs[lo][j])); d < left {
			best, left = j, d
		}
	}
	if best < 0 {
		return false
	}
	moved := l.costs[hi][best] - l.costs[lo][best]
	l.dealt[hi][best], l.dealt[lo][best] = l.dealt[lo][best], l.dealt[hi][best]
	l.loads[hi][best], l.loads[lo][best] = l.loads[lo][best], l.loads[hi][best]
	l.costs[hi][best], l.costs[lo][best] = l.costs[lo][best], l.costs[hi][best]
	l.total[hi], l.total[lo] = l.total[hi]-moved, l.total[lo]+moved
	return true
}

// exchangeItems trades items of any two bins of the ranks. Unless slower is set, no micro-step becomes slower.
func (l *leveler) exchangeItems(hi, lo int, slower bool) bool {
	gap := l.total[hi] - l.total[lo]
	left := gap - gap/8
	var from, to int
	var give, take part
	for i, a := range l.dealt[hi] {
		gives := parts(a, l.lengths, l.cost, false)
		for j, b := range l.dealt[lo] {
			lim := limits{
				roomHi: l.capacity - l.loads[hi][i], roomLo: l.capacity - l.loads[lo][j],
				mostLo: l.slowest[j] - l.costs[lo][j], gap: gap,
			}
			if slower {
				lim.mostLo = gap
			}
			if g, t, d := exchange(gives, parts(b, l.lengths, l.cost, false), lim); d < left {
				from, to, give, take, left = i, j, g, t, d
			}
		}
	}
	if left == gap-gap/8 {
		return false
	}
	trade(&l.dealt[hi][from], &l.dealt[lo][to], give, take)
	l.loads[hi][from] += take.tokens - give.tokens
	l.loads[lo][to] += give.tokens - take.tokens
	moved := give.cost - take.cost
	l.costs[hi][from] -= moved
	l.costs[lo][to] += moved
	l.total[hi] -= moved
	l.total[lo] += moved
	l.slowest[to] = max(l.slowest[to], l.costs[lo][to])
	return true
}
