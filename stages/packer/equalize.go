package packer

import (
	"cmp"
	"slices"
)

// A microStep is the bins of one, one for each rank. Each has a weight: its cost, and what its rank is ahead.
type microStep struct {
	lengths  []int
	cost     []int64
	capacity int
	bins     [][]int // items by falling length
	ahead    []int64
	loads    []int // tokens
	weights  []int64
	order    []int    // the bins by rising weight, without those that are stuck
	offered  [][]part // what each has to give; empty since it changed
	// Scratch of redistribute.
	items  []int
	halves [2][]int
}

// How many of the lightest bins the heaviest one tries to share with, in each of the two ways.
const (
	triedShares    = 6
	triedExchanges = 24
)

// equalize lowers the weight of the heaviest bin of a micro-step, its cost and what its rank is ahead, by moving items
// between it and lighter ones, until it is close to the mean. A bin that nothing helps stays as it is, and the next one is
// the heaviest. No bin grows beyond capacity.
func equalize(bins [][]int, ahead []int64, lengths []int, cost []int64, capacity int) {
	s := &microStep{
		lengths: lengths, cost: cost, capacity: capacity, bins: bins, ahead: ahead, order: upTo(len(bins)),
		loads: make([]int, len(bins)), weights: make([]int64, len(bins)), offered: make([][]part, len(bins)),
	}
	total, weight := int64(0), int64(0)
	for i, bin := range bins {
		c := sumOf(cost, bin)
		s.loads[i], s.weights[i] = sumOf(lengths, bin), c+ahead[i]
		total += c
		weight += s.weights[i]
	}
	tolerance := total / int64(len(bins)) / closeEnough
	slices.SortFunc(s.order, s.lighter)
	for range 64 * len(bins) {
		n := len(s.order)
		if n < 2 {
			return
		}
		hi := s.order[n-1]
		if s.weights[hi]-weight/int64(n) <= tolerance {
			return
		}
		lightest := s.order[:n-1]
		if !slices.ContainsFunc(lightest[:min(n-1, triedShares)], func(lo int) bool { return s.redistribute(hi, lo) }) &&
			!slices.ContainsFunc(lightest[:min(n-1, triedExchanges)], func(lo int) bool { return s.exchange(hi, lo) }) {
			s.order = lightest
			weight -= s.weights[hi]
		}
	}
}

func (s *microStep) lighter(a, b int) int {
	return cmp.Or(cmp.Compare(s.weights[a], s.weights[b]), a-b)
}

// longer is the order in which first-fit-decreasing takes items.
func (s *microStep) longer(a, b int) int { return cmp.Or(cmp.Compare(s.lengths[b], s.lengths[a]), a-b) }

// redistribute empties two bins and puts each item, longest first, into the lighter one that has room for it.
func (s *microStep) redistribute(hi, lo int) bool {
	s.items = append(append(s.items[:0], s.bins[hi]...), s.bins[lo]...)
	slices.SortFunc(s.items, s.longer)
	s.halves[0], s.halves[1] = s.halves[0][:0], s.halves[1][:0]
	weights, loads := [2]int64{s.ahead[hi], s.ahead[lo]}, [2]int{}
	for _, item := range s.items {
		h := 0
		if weights[1] < weights[0] {
			h = 1
		}
		if loads[h]+s.lengths[item] > s.capacity {
			h = 1 - h
		}
		if loads[h]+s.lengths[item] > s.capacity {
			return false
		}
		s.halves[h] = append(s.halves[h], item)
		weights[h] += s.cost[item]
		loads[h] += s.lengths[item]
	}
	if distance(weights[0], weights[1]) >= s.weights[hi]-s.weights[lo] {
		return false
	}
	for h, i := range []int{hi, lo} {
		s.bins[i] = append(s.bins[i][:0], s.halves[h]...)
		s.weights[i], s.loads[i] = weights[h], loads[h]
	}
	s.changed(hi, lo)
	return true
}

// exchange trades one or two items, or one for nothing.
func (s *microStep) exchange(hi, lo int) bool {
	gap := s.weights[hi] - s.weights[lo]
	give, take, ok := exchange(s.offers(hi), s.offers(lo), s.capacity, gap, gap)
	if !ok {
		return false
	}
	trade(&s.bins[hi], &s.bins[lo], give, take)
	for _, i := range []int{hi, lo} {
		slices.SortFunc(s.bins[i], s.longer)
		s.loads[i], s.weights[i] = sumOf(s.lengths, s.bins[i]), sumOf(s.cost, s.bins[i])+s.ahead[i]
	}
	s.changed(hi, lo)
	return true
}

// offers is what a bin brings to an exchange.
func (s *microStep) offers(i int) side {
	if len(s.offered[i]) == 0 {
		s.offered[i] = rising(appendParts(s.offered[i], 0, s.bins[i], s.lengths, s.cost))
	}
	return side{parts: s.offered[i], loads: s.loads[i : i+1]}
}

// changed puts two bins where they belong now.
func (s *microStep) changed(a, b int) {
	s.offered[a], s.offered[b] = s.offered[a][:0], s.offered[b][:0]
	s.order = slices.DeleteFunc(s.order, func(i int) bool { return i == a || i == b })
	for _, i := range []int{a, b} {
		at, _ := slices.BinarySearchFunc(s.order, i, s.lighter)
		s.order = slices.Insert(s.order, at, i)
	}
}
