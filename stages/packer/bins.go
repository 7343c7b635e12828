package packer

import "slices"

// firstFitDecreasing puts items of the given lengths, longest first, each into the first bin of the given capacity that
// has room. It returns the items of each bin. Lengths are from 1 to capacity.
func firstFitDecreasing(lengths []int, capacity int) [][]int {
	order, bin := byLength(lengths), make([]int, len(lengths))
	return gather(order, bin, firstFit(order, lengths, capacity, bin))
}

// firstFit puts each item, in order, into the first bin of the given capacity that has room, and one that is longer into
// a bin of its own. It sets the bin of each item and returns how many there are. O(n log n).
func firstFit(order, lengths []int, capacity int, bin []int) (bins int) {
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
	for _, item := range order {
		n := min(lengths[item], capacity)
		node := 1
		for node < width {
			node *= 2
			if room[node] < n {
				node++
			}
		}
		bin[item] = node - width
		bins = max(bins, bin[item]+1)
		room[node] -= n
		for node /= 2; node > 0; node /= 2 {
			room[node] = max(room[2*node], room[2*node+1])
		}
	}
	return bins
}

// gather makes bins of what firstFit says, with their items in order.
func gather(order, bin []int, bins int) [][]int {
	sizes := make([]int, bins)
	for _, b := range bin {
		sizes[b]++
	}
	all := slices.Grow([][]int(nil), bins)
	for _, size := range sizes {
		all = append(all, make([]int, 0, size))
	}
	for _, item := range order {
		all[bin[item]] = append(all[bin[item]], item)
	}
	return all
}

// fill packs for one rank, which waits for nobody: the bins of first-fit-decreasing. With a tenth of
// their room to spare they are made alike in cost, and so in the memory they take: each item, longest first, goes to the cheapest bin that has room for it, unless that strands one.
func fill(lengths []int, cost []int64, capacity int) [][]int {
	tight := firstFitDecreasing(lengths, capacity)
	want := len(tight)
	if sumOf(lengths, upTo(len(lengths))) > want*capacity/10*9 {
		return tight
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
			return tight
		}
		bins[cheapest] = append(bins[cheapest], item)
		loads[cheapest] += lengths[item]
		costs[cheapest] += cost[item]
	}
	return bins
}

// sharedRoom is the share of a bin that spreadRoom leaves free at most: more would take from the first micro-steps what
// makes them worth their longest samples.
const sharedRoom = 20

// spreadRoom packs for ranks: into the least multiple of them of bins that first-fit-decreasing can do with, the last ones
// perhaps empty. Full bins could exchange next to nothing; so the bins are of the least capacity with which they are that
// many, and each has some of the room that would be left in the last ones.
func spreadRoom(lengths []int, capacity, ranks int) [][]int {
	order, bin := byLength(lengths), make([]int, len(lengths))
	tight := firstFit(order, lengths, capacity, bin)
	want := (tight + ranks - 1) / ranks * ranks
	least, most := capacity-capacity/sharedRoom, capacity
	for most-least > 1+capacity/closeEnough {
		if tried := (least + most) / 2; firstFit(order, lengths, tried, bin) <= want {
			most = tried
		} else {
			least = tried
		}
	}
	bins := gather(order, bin, firstFit(order, lengths, most, bin))
	return append(bins, make([][]int, want-len(bins))...)
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
