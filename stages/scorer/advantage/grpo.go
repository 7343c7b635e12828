package advantage

// newGRPO is group relative policy optimisation (arXiv:2402.03300): r - mean of the group, the division by the standard
// deviation being optional (arXiv:2503.20783 argues against it).
func newGRPO(o Options) Algorithm {
	return relative{compare: o.grpo(), penalty: o.LengthPenalty}
}

func (o Options) grpo() comparison {
	if o.NormalizeStd {
		return standardized
	}
	return meanFree
}

// take subtracts from each reward the mean reward times
//
//	output · out/max(out) + input · in/max(in) + turns · turns/max(turns)
//
// of its member, where each maximum is over those that are compared, and at least 1. Rewards of single tokens stay.
func (p LengthPenalty) take(members []Member, set []int, rewards []float64) {
	out, in, turns := 1, 1, 1
	for _, i := range set {
		s := members[i].Size
		out, in, turns = max(out, s.Output), max(in, s.Total-s.Output), max(turns, s.Turns)
	}
	distances := append([]float64(nil), rewards...)
	s := centre(distances)
	for k, i := range set {
		m := members[i].Size
		share := float64(p.Output*(float64(m.Output)/float64(out))) + float64(p.Input*(float64(m.Total-m.Output)/float64(in))) +
			float64(p.Turns*(float64(m.Turns)/float64(turns)))
		rewards[k] = finite(rewards[k] - finite(s.mean*share*s.scale))
	}
}
