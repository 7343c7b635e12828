package packer

import (
	"cmp"
	"math"
	"slices"
)

// A leveler brings the total of the most loaded rank down to the mean. It prefers exchanges that make no micro-step slower
// than its ranks must; where none is left (a few samples so long that their ranks must shed others), it takes those that
// cost the micro-steps least. Of ranks that meet only at the end of a step, the slowest is what counts.
type leveler struct {
	dealt    [][][]int // bins by rank and index
	lengths  []int
	cost     []int64
	capacity int
	loads    [][]int   // tokens of each bin
	costs    [][]int64 // of each bin
	slowest  []int64   // cost of the costliest bin of each micro-step
	total    []int64   // of each rank
	mean     int64     // of the totals
	offered  [][]part  // what each rank has to give; empty since its bins changed
}

func newLeveler(dealt [][][]int, lengths []int, cost []int64, capacity int) *leveler {
	l := &leveler{
		dealt: dealt, lengths: lengths, cost: cost, capacity: capacity,
		loads: make([][]int, len(dealt)), costs: make([][]int64, len(dealt)),
		slowest: make([]int64, len(dealt[0])), total: make([]int64, len(dealt)), offered: make([][]part, len(dealt)),
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
	l.mean = sumOf(l.total, upTo(len(l.total))) / int64(len(l.total))
	return l
}

// run levels until the most loaded rank is close to the mean or nothing helps.
func (l *leveler) run() {
	for range 32 * len(l.total) {
		hi := slices.Index(l.total, slices.Max(l.total))
		if l.total[hi]-l.mean <= l.mean/closeEnough {
			return
		}
		partners := upTo(len(l.total))
		slices.SortFunc(partners, func(a, b int) int { return cmp.Or(cmp.Compare(l.total[a], l.total[b]), a-b) })
		if !slices.ContainsFunc(partners, func(r int) bool { return l.swapBins(hi, r) || l.exchangeItems(hi, r, false) }) &&
			!l.swapAcross(hi) &&
			!slices.ContainsFunc(partners, func(r int) bool { return l.exchangeItems(hi, r, true) }) {
			return
		}
	}
}

// swapAcross lets rank hi exchange a bin for one of another micro-step. Of the exchanges that take at least half of
// what it has above the mean, it is the one that costs the micro-steps least.
func (l *leveler) swapAcross(hi int) bool {
	limit := l.mean + (l.total[hi]-l.mean)/2
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
	l.moved(hi, rank, moved)
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
	l.moved(hi, lo, moved)
	return true
}

// exchangeItems trades items of any two bins of the ranks. Unless slower is set, no bin of lo comes to more than most.
func (l *leveler) exchangeItems(hi, lo int, slower bool) bool {
	gap := l.total[hi] - l.total[lo]
	from, to := l.side(hi), l.side(lo)
	if !slower {
		to.most = l.most(lo)
	}
	give, take, ok := exchange(from, to, l.capacity, gap, gap-gap/8)
	if !ok {
		return false
	}
	i, j := give.bin, take.bin
	trade(&l.dealt[hi][i], &l.dealt[lo][j], give, take)
	l.loads[hi][i] += take.tokens - give.tokens
	l.loads[lo][j] += give.tokens - take.tokens
	moved := give.cost - take.cost
	l.costs[hi][i] -= moved
	l.costs[lo][j] += moved
	l.slowest[j] = max(l.slowest[j], l.costs[lo][j])
	l.moved(hi, lo, moved)
	return true
}

// side is what a rank brings to an exchange.
func (l *leveler) side(rank int) side {
	if len(l.offered[rank]) == 0 {
		parts := l.offered[rank]
		for j, bin := range l.dealt[rank] {
			parts = appendParts(parts, j, bin, l.lengths, l.cost)
		}
		l.offered[rank] = rising(parts)
	}
	return side{parts: l.offered[rank], loads: l.loads[rank], costs: l.costs[rank]}
}

// most is what the bins of a rank may cost: what the slowest of their micro-step does, or their share of what the rank is
// short of the mean more than now, since it has to get there in some micro-step.
func (l *leveler) most(rank int) []int64 {
	short := max(0, l.mean-l.total[rank]) / int64(len(l.slowest))
	most := slices.Clone(l.slowest)
	for j, c := range l.costs[rank] {
		most[j] = max(most[j], c+short)
	}
	return most
}

// moved accounts for cost that has gone from one rank to another.
func (l *leveler) moved(from, to int, cost int64) {
	l.total[from] -= cost
	l.total[to] += cost
	l.offered[from], l.offered[to] = l.offered[from][:0], l.offered[to][:0]
}
