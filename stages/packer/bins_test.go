package packer

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

func TestFirstFitDecreasing(t *testing.T) {
	for _, tt := range []struct {
		lengths []int
		want    [][]int
	}{
		{nil, nil},
		{[]int{10}, [][]int{{0}}},
		{[]int{5, 5, 5}, [][]int{{0, 1}, {2}}},
		{[]int{2, 7, 3, 8, 1}, [][]int{{3, 0}, {1, 2}, {4}}},
		{[]int{1, 10, 9, 1}, [][]int{{1}, {2, 0}, {3}}},
	} {
		if got := firstFitDecreasing(tt.lengths, 10); !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%v: %v, want %v", tt.lengths, got, tt.want)
		}
	}
}

// The tree finds the same bins as looking at each in turn.
func TestFirstFitDecreasingNaive(t *testing.T) {
	for seed := range uint64(30) {
		lengths := logNormal(seed, 1+int(seed)*7, 9000)
		order := upTo(len(lengths))
		slices.SortStableFunc(order, func(a, b int) int { return lengths[b] - lengths[a] })
		var want [][]int
		for _, item := range order {
			i := slices.IndexFunc(want, func(bin []int) bool { return sumOf(lengths, bin)+lengths[item] <= 9000 })
			if i < 0 {
				i = len(want)
				want = append(want, nil)
			}
			want[i] = append(want[i], item)
		}
		if got := firstFitDecreasing(lengths, 9000); !reflect.DeepEqual(got, want) {
			t.Fatalf("seed %d: %v, want %v", seed, got, want)
		}
	}
}

func TestPlanIsAPartition(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		n, ranks, capacity := 1+rng.IntN(80), 1+rng.IntN(9), 1+rng.IntN(5000)
		lengths := make([]int, n)
		for i := range lengths {
			lengths[i] = 1 + rng.IntN(capacity)
			if rng.IntN(3) == 0 {
				lengths[i] = capacity
			}
		}
		f := flops{linear: int64(rng.IntN(10_000)), quadratic: rng.IntN(4) > 0}
		cost := f.of(lengths)
		planned := plan(lengths, cost, capacity, ranks)
		if len(planned) != ranks {
			t.Fatalf("%d ranks of %d", len(planned), ranks)
		}
		seen, totals := make([]int, n), make([]int64, ranks)
		for rank, bins := range planned {
			if len(bins) != len(planned[0]) {
				t.Fatalf("%d and %d bins", len(bins), len(planned[0]))
			}
			for _, bin := range bins {
				if sumOf(lengths, bin) > capacity {
					t.Fatalf("%d tokens in a bin of %d", sumOf(lengths, bin), capacity)
				}
				if !slices.IsSorted(bin) {
					t.Fatalf("bin %v", bin)
				}
				for _, i := range bin {
					seen[i]++
				}
				totals[rank] += sumOf(cost, bin)
			}
		}
		if full := f.of([]int{capacity})[0]; slices.Max(totals)-slices.Min(totals) > full {
			t.Fatalf("ranks of %v, a full micro-batch costs %d", totals, full)
		}
		if slices.Max(seen) != 1 || slices.Min(seen) != 1 {
			t.Fatalf("items are in %v bins", seen)
		}
		if ffd := len(firstFitDecreasing(lengths, capacity)); len(planned[0]) != (ffd+ranks-1)/ranks {
			t.Fatalf("%d bins on each of %d ranks, first-fit-decreasing needs %d", len(planned[0]), ranks, ffd)
		}
		if again := plan(lengths, cost, capacity, ranks); !reflect.DeepEqual(again, planned) {
			t.Fatal("another time, another plan")
		}
	}
}

// The search finds what looking at every pair of parts finds, the first of equals.
func TestExchangeNaive(t *testing.T) {
	found := 0
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		capacity := 20 + rng.IntN(40)
		var sides [2]side
		var costs [2]int64
		for s := range sides {
			lengths := make([]int, 40)
			var bins [][]int
			for i := range lengths {
				lengths[i] = 1 + rng.IntN(9)
				if last := len(bins) - 1; last < 0 || sumOf(lengths, bins[last])+lengths[i] > capacity {
					bins = append(bins, nil)
				}
				bins[len(bins)-1] = append(bins[len(bins)-1], i)
			}
			cost := flops{linear: rng.Int64N(10), quadratic: rng.IntN(4) > 0}.of(lengths)
			for j, bin := range bins {
				sides[s].parts = appendParts(sides[s].parts, j, bin, lengths, cost)
				sides[s].loads = append(sides[s].loads, sumOf(lengths, bin))
				sides[s].costs = append(sides[s].costs, sumOf(cost, bin))
				sides[s].most = append(sides[s].most, sumOf(cost, bin)+rng.Int64N(100))
			}
			rising(sides[s].parts)
			costs[s] = sumOf(cost, upTo(len(cost)))
		}
		if rng.IntN(2) == 0 {
			sides[1].most = nil
		}
		gap := costs[0] - costs[1] + rng.Int64N(100)
		enough := gap - gap/int64(1+rng.IntN(8))
		var give, take part
		ok, left := false, enough
		for _, g := range sides[0].parts {
			for _, p := range sides[1].parts {
				d := distance(gap, 2*(g.cost-p.cost))
				if fits(&g, &p, &sides[0], &sides[1], capacity) && (d < left || ok && d == left && before(&g, &p, &give, &take)) {
					give, take, left, ok = g, p, d, true
				}
			}
		}
		if g, p, o := exchange(sides[0], sides[1], capacity, gap, enough); o != ok || g != give || p != take {
			t.Fatalf("seed %d: %v for %v (%v), want %v for %v (%v)", seed, g, p, o, give, take, ok)
		}
		if ok {
			found++
		}
	}
	if found < 100 {
		t.Errorf("only %d exchanges were found", found)
	}
}

func TestFlopsStayInRange(t *testing.T) {
	for _, c := range []Config{
		{FlopsLinear: 1 << 62, FlopsQuadratic: 1}, {FlopsLinear: 1 << 62}, {FlopsQuadratic: 1 << 62}, {FlopsLinear: 140e9, FlopsQuadratic: 1_310_720},
	} {
		lengths := slices.Repeat([]int{1 << 20}, 1024)
		if got := sumOf(newFlops(c).of(lengths), upTo(1024)); got <= 0 {
			t.Errorf("%+v: 2^30 tokens cost %d", c, got)
		}
	}
}

func FuzzPlan(f *testing.F) {
	f.Add([]byte{1, 200, 3, 255}, uint8(3), uint8(2))
	f.Add([]byte{}, uint8(3), uint8(2))
	f.Fuzz(func(t *testing.T, b []byte, ranks, linear uint8) {
		lengths := make([]int, min(len(b), 200))
		for i := range lengths {
			lengths[i] = 1 + int(b[i])
		}
		n := 1 + int(ranks%16)
		planned := plan(lengths, flops{int64(linear), true}.of(lengths), 256, n)
		count := 0
		for _, bins := range planned {
			for _, bin := range bins {
				count += len(bin)
				if sumOf(lengths, bin) > 256 {
					t.Fatalf("%v", planned)
				}
			}
		}
		if count != len(lengths) || len(planned) != n {
			t.Fatalf("%d of %d items on %d ranks", count, len(lengths), len(planned))
		}
	})
}
