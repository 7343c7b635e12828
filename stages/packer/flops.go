package packer

// flops estimates what a sample of n tokens costs, in arbitrary units: n·(linear + n), attention looking at each sample
// alone. Whole numbers, so that every machine makes the same plan.
type flops struct {
	linear    int64 // tokens of context at which attention costs as much as all the rest
	quadratic bool  // whether attention costs anything
}

// negligible is the context up to which attention may count as nothing; it keeps sums over a step within 64 bits.
const negligible = 1 << 24

func newFlops(c Config) flops {
	if c.FlopsQuadratic == 0 || c.FlopsLinear/c.FlopsQuadratic > negligible {
		return flops{linear: 1}
	}
	return flops{c.FlopsLinear / c.FlopsQuadratic, true}
}

func (f flops) of(lengths []int) []int64 {
	cost := make([]int64, len(lengths))
	for i, n := range lengths {
		cost[i] = int64(n) * f.linear
		if f.quadratic {
			cost[i] += int64(n) * int64(n)
		}
	}
	return cost
}
