package advantage

// newRLOO is REINFORCE leave-one-out (arXiv:2402.14740): r - mean of the others, which is n/(n-1) · (r - mean).
func newRLOO(Options) Algorithm { return relative{compare: leaveOneOut} }

func leaveOneOut(rewards []float64) {
	n := float64(len(rewards))
	meanFree(rewards)
	if n == 1 {
		return // nothing to compare it with
	}
	for i := range rewards {
		rewards[i] *= n / (n - 1)
	}
}
