package advantage

import "math"

// grpo is group relative policy optimisation (arXiv:2402.03300): a rollout's reward less the mean of its group, the
// division by the (population) standard deviation being optional (arXiv:2503.20783 argues against it).
//
// Where the environment rewards tokens, sampled token i is compared with the tokens i of the group's other rollouts
// that have one; tokens without a reward of their own get the rollout's advantage.
type grpo struct{ Options }

func (a grpo) Advantages(group []Rollout) []Advantage {
	advantages := make([]Advantage, len(group))
	values := make([]float64, 0, len(group))
	longest := 0
	for i, r := range group {
		if r.Trace.Reward == nil {
			advantages[i].Excluded = true
			continue
		}
		values = append(values, *r.Trace.Reward)
		longest = max(longest, len(r.TokenRewards))
	}
	a.centre(values)
	for i := range group {
		if advantages[i].Excluded {
			continue
		}
		advantages[i].All, values = narrow(values[0]), values[1:]
		if group[i].TokenRewards != nil {
			advantages[i].Tokens = make([]float32, group[i].Sampled)
		}
	}
	for pos := range longest {
		a.position(group, pos, advantages)
	}
	return advantages
}

// position fills in the advantages of the sampled tokens number pos.
func (a grpo) position(group []Rollout, pos int, advantages []Advantage) {
	var members []int
	var values []float64
	for i, r := range group {
		if advantages[i].Excluded || pos >= len(r.TokenRewards) {
			continue
		}
		if v := float64(r.TokenRewards[pos]); math.IsNaN(v) {
			advantages[i].Tokens[pos] = advantages[i].All
		} else {
			members, values = append(members, i), append(values, v)
		}
	}
	a.centre(values)
	for k, i := range members {
		advantages[i].Tokens[pos] = narrow(values[k])
	}
}

// centre subtracts the mean from finite values, and divides by their standard deviation if wanted. Equal values become
// exactly zero, as the mean is found by its distance from one of them.
func (a grpo) centre(values []float64) {
	if len(values) == 0 {
		return
	}
	scale := 1.0
	for _, v := range values {
		if math.Abs(v) > math.MaxFloat64/4 {
			scale = 4 // keeps differences finite
		}
	}
	first, n, distance := values[0]/scale, float64(len(values)), 0.0
	for _, v := range values {
		distance += (v/scale - first) / n
	}
	mean, largest := first+distance, 0.0
	for i, v := range values {
		values[i] = v/scale - mean
		largest = max(largest, math.Abs(values[i]))
	}
	if a.NormalizeStd && largest > 0 {
		// Relative to the largest, no square overflows or vanishes.
		squares := 0.0
		for _, v := range values {
			squares += float64(v/largest) * float64(v/largest) / n
		}
		for i, v := range values {
			values[i] = v / largest / math.Sqrt(squares)
		}
		return
	}
	for i := range values {
		values[i] *= scale
	}
}

// narrow is the nearest finite float32.
func narrow(v float64) float32 {
	return float32(min(max(v, -math.MaxFloat32), math.MaxFloat32))
}
