package packer

import "slices"

// firstFitDecreasing puts items of the given lengths, longest first, each into the first bin of the given capacity that
// has room. It returns the items of each bin. Lengths are from 1 to capacity. O(n log n).
func firstFitDecreasing(lengths []int, capacity int) [][]int {
	// room is a tree over bins, of which the leaves begin at width: each node holds the most room below it. Bins that
	// are not open yet have all of theirs, so that the first that fits is found by going down to the left.
	width := 1
	for width < len(lengths) {
		width *= 2
	}
	room := make([]int, 2*width)
	for i := range room {
		room[i] = capacity
	}
	var bins [][]int
	for _, item := range byLength(lengths) {
		node := 1
		for node < width {
			node *= 2
			if room[node] < lengths[item] {
				node++
			}
		}
		bin := node - width
		if bin == len(bins) {
			bins = append(bins, nil)
		}
		bins[bin] = append(bins[bin], item)
		room[node] -= lengths[item]
		for node /= 2; node > 0; node /= 2 {
			room[node] = max(room[2*node], room[2*node+1])
		}
	}
	return bins
}

// fill puts all items into the least multiple of ranks of bins that first-fit-decreasing can do with. With a tenth of the
// room to spare each item, longest first, goes to the cheapest bin that has room for it. Where there is less, or that
// strands an item, the bins of first-fit-decreasing are split: they leave the room where exchanges can use it.
func fill(lengths []int, cost []int64, capacity, ranks int) [][]int {
	tight := firstFitDecreasing(lengths, capacity)
	want := (len(tight) + ranks - 1) / ranks * ranks
	if sumOf(lengths, upTo(len(lengths))) > want*capacity/10*9 {
		return split(tight, want, cost)
	}
	bins, loads, costs := make([][]int, want), make([]int, want), make([]int64, want)
	for _, item := range byLength(lengths) {
		cheapest := -1
		for i := range bins {
			if loads[i]+lengths[item] <= capacity && (cheapest < 0 || costs[i] < costs[cheapest]) {
				cheapest = i
			}
		}
		if cheapest < 0 {
			return split(tight, want, cost)
		}
		bins[cheapest] = append(bins[cheapest], item)
		loads[cheapest] += lengths[item]
		costs[cheapest] += cost[item]
	}
	return bins
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

// byLength is the items by falling length.
func byLength(lengths []int) []int {
	order := upTo(len(lengths))
	slices.SortStableFunc(order, func(a, b int) int { return lengths[b] - lengths[a] })
	return order
}

func sumOf[T int | int64](values []T, items []int) (sum T) {
	for _, i := range items {
		sum += values[i]
	}
	return sum
}
