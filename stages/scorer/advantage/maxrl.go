package advantage

// newMaxRL is maximum likelihood reinforcement learning (arXiv:2602.02710): (r - mean) / mean, and zero for all where the
// mean is not above zero. The rarer success is, the more it weighs.
func newMaxRL(Options) Algorithm { return relative{compare: overMean} }

func overMean(rewards []float64) {
	s := centre(rewards)
	for i := range rewards {
		if s.mean > 0 {
			rewards[i] /= s.mean
		} else {
			rewards[i] = 0
		}
	}
}
