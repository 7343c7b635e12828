package advantage

// imitation gives every member the same credit, whatever its reward.
type imitation Credit

func (a imitation) Credits(g Group) []Credit {
	credits := make([]Credit, len(g.Members))
	for i := range credits {
		credits[i] = Credit(a)
	}
	return credits
}

// newDistillation draws the policy to its teacher on the tokens it sampled itself. Who the teacher is makes the
// difference between opd (on-policy distillation, arXiv:2306.13649: a frozen policy) and opsd (self-distillation,
// arXiv:2601.19897: the policy itself, shown a demonstration), and is the environment's setting.
func newDistillation(Options) Algorithm { return imitation{RefKL: 1} }

// newSFT is supervised fine-tuning on rollouts of a frozen policy: the cross-entropy of their sampled tokens.
func newSFT(Options) Algorithm { return imitation{CE: 1} }

// echo is grpo, and the cross-entropy of what the environment answered, with a small weight: the policy learns what its
// actions lead to.
type echo struct {
	Algorithm
	alpha float32
}

func newEcho(o Options) Algorithm { return echo{newGRPO(o), float32(o.EchoAlpha)} }

func (a echo) Credits(g Group) []Credit {
	credits := a.Algorithm.Credits(g)
	for i := range credits {
		if credits[i].RL {
			credits[i].Answers = a.alpha
		}
	}
	return credits
}

// withReference keeps a policy gradient near the teacher.
type withReference struct {
	Algorithm
	weight float32
}

func (a withReference) Credits(g Group) []Credit {
	credits := a.Algorithm.Credits(g)
	for i := range credits {
		if credits[i].RL {
			credits[i].RefKL = a.weight
		}
	}
	return credits
}
