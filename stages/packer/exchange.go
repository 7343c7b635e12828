package packer

import (
	"cmp"
	"math"
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

// A part is what of a bin may change places: nothing, an item, or two.
type part struct {
	cost          int64
	tokens        int
	bin           int32 // of those of its side
	order         int32 // among the parts of its bin
	first, second int32 // its items, or none
}

const none = -1

// appendParts adds the parts of a bin.
func appendParts(to []part, index int, bin, lengths []int, cost []int64) []part {
	order := int32(0)
	add := func(tokens int, cost int64, first, second int) {
		to = append(to, part{cost, tokens, int32(index), order, int32(first), int32(second)})
		order++
	}
	add(0, 0, none, none)
	stride := 1 + (len(bin)-1)/triedItems
	for k := 0; k < len(bin); k += stride {
		i := bin[k]
		add(lengths[i], cost[i], i, none)
	}
	if len(bin) > triedPairs {
		return to
	}
	for k, i := range bin {
		for _, j := range bin[:k] {
			add(lengths[i]+lengths[j], cost[i]+cost[j], i, j)
		}
	}
	return to
}

// rising sorts parts by cost.
func rising(parts []part) []part {
	slices.SortFunc(parts, func(a, b part) int { return cmp.Compare(a.cost, b.cost) })
	return parts
}

// A side of an exchange is a bin, or the bins of a rank.
type side struct {
	parts []part // by rising cost
	loads []int  // tokens of each bin
	// costs of each bin, and the most it may come to; nil where that does not matter.
	costs, most []int64
}

// slack is the most cost that a bin may gain.
func (s *side) slack() int64 {
	if s.most == nil {
		return math.MaxInt64
	}
	slack := int64(0)
	for j, most := range s.most {
		slack = max(slack, most-s.costs[j])
	}
	return slack
}

// exchange finds the parts of two sides that should change places: those that leave the least of the gap, which is the
// cost that hi is above lo. Without any that leaves less than enough, ok is false. Of equals the first counts.
//
// For each part of hi, the search looks at those of lo in the order of how much they would leave, and ends at the first
// that would leave more than is left already.
func exchange(hi, lo side, capacity int, gap, enough int64) (give, take part, ok bool) {
	left := enough
	slack := lo.slack()
	best, least := 0, 0 // of lo, by its cost: the first at the ideal, and the first with which no more moves than may
	for i := range hi.parts {
		g := &hi.parts[i]
		ideal := 2*g.cost - gap // twice the cost of what comes back and leaves nothing
		for best < len(lo.parts) && 2*lo.parts[best].cost < ideal {
			best++
		}
		for least < len(lo.parts) && g.cost-lo.parts[least].cost > slack {
			least++
		}
		try := func(k int) (more bool) {
			t := &lo.parts[k]
			d := distance(2*t.cost, ideal)
			if d > left {
				return false
			}
			if !fits(g, t, &hi, &lo, capacity) || d == left && (!ok || !before(g, t, &give, &take)) {
				return true
			}
			give, take, left, ok = *g, *t, d, true
			return true
		}
		for k := max(best, least); k < len(lo.parts) && try(k); k++ {
		}
		for k := best - 1; k >= least && try(k); k-- {
		}
	}
	return give, take, ok
}

// fits reports whether bins stay within what they may have when parts of two sides change places.
func fits(g, t *part, hi, lo *side, capacity int) bool {
	tokens := g.tokens - t.tokens
	return lo.loads[t.bin]+tokens <= capacity && hi.loads[g.bin]-tokens <= capacity &&
		(lo.most == nil || lo.costs[t.bin]+g.cost-t.cost <= lo.most[t.bin])
}

// before orders exchanges that leave the same.
func before(g, t, give, take *part) bool {
	return cmp.Or(cmp.Compare(g.bin, give.bin), cmp.Compare(t.bin, take.bin), cmp.Compare(g.order, give.order), cmp.Compare(t.order, take.order)) < 0
}

func distance(a, b int64) int64 { return max(a-b, b-a) }

// trade lets parts of two bins change places.
func trade(hi, lo *[]int, give, take part) {
	*hi, *lo = replace(*hi, give, take), replace(*lo, take, give)
}

// replace takes a part out of a bin and puts another one in.
func replace(bin []int, out, in part) []int {
	bin = slices.DeleteFunc(bin, func(i int) bool { return i == int(out.first) || i == int(out.second) })
	for _, i := range []int32{in.first, in.second} {
		if i != none {
			bin = append(bin, int(i))
		}
	}
	return bin
}
