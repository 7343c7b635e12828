package replay

import (
	"maps"
	"math"
	"slices"
)

// distinctValues bounds the memory of a Distribution.
const distinctValues = 1 << 16

// A Distribution is that of any number of values, in bounded memory: mean, deviation and the share of zero are exact but
// for rounding, quantiles to the precision that the number of distinct values leaves, never worse than one part in 100.
type Distribution struct {
	N              int64
	zero           int64
	sum, abs, sqrs float64
	counts         map[uint32]int64 // by the bits of a float32, the lowest dropped bits cleared
	dropped        int
}

// Add counts a value n times.
func (d *Distribution) Add(v float32, n int64) {
	if n == 0 {
		return
	}
	if d.counts == nil {
		d.counts = map[uint32]int64{}
	}
	x, weight := float64(v), float64(n)
	d.N += n
	d.sum += x * weight
	d.abs += math.Abs(x) * weight
	d.sqrs += x * x * weight
	if v == 0 {
		d.zero += n
		v = 0 // and not -0
	}
	d.counts[d.cell(math.Float32bits(v))] += n
	for len(d.counts) > distinctValues && d.dropped < 16 {
		d.dropped++
		coarse := make(map[uint32]int64, len(d.counts)/2)
		for bits, n := range d.counts {
			coarse[d.cell(bits)] += n
		}
		d.counts = coarse
	}
}

func (d *Distribution) cell(bits uint32) uint32 { return bits >> d.dropped << d.dropped }

// Mean is 0 without values, as are the others.
func (d *Distribution) Mean() float64 { return d.per(d.sum) }

// MeanAbs is the mean of the absolute values.
func (d *Distribution) MeanAbs() float64 { return d.per(d.abs) }

// Std is the population standard deviation.
func (d *Distribution) Std() float64 {
	return math.Sqrt(max(0, d.per(d.sqrs)-d.Mean()*d.Mean()))
}

// Zero is the share of values that are exactly zero.
func (d *Distribution) Zero() float64 { return d.per(float64(d.zero)) }

func (d *Distribution) per(sum float64) float64 {
	if d.N == 0 {
		return 0
	}
	return sum / float64(d.N)
}

// Quantiles gives the values below which the shares qs, in rising order, of all lie.
func (d *Distribution) Quantiles(qs ...float64) []float64 {
	values := make([]float64, len(qs))
	cells := slices.SortedFunc(maps.Keys(d.counts), func(a, b uint32) int {
		if math.Float32frombits(a) < math.Float32frombits(b) {
			return -1
		}
		return 1
	})
	at, below := 0, int64(0)
	for i, q := range qs {
		for at < len(cells)-1 && float64(below+d.counts[cells[at]]) < q*float64(d.N) {
			below += d.counts[cells[at]]
			at++
		}
		if len(cells) > 0 {
			values[i] = float64(math.Float32frombits(cells[at]))
		}
	}
	return values
}
