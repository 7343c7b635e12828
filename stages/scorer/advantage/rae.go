package advantage

import "math"

// rae is role-conditioned advantage estimation (SPIRAL, arXiv:2506.24119): r - b, where b is the moving average of the
// rewards before it of the same environment and agent. Members are taken in their order. Rewards of single tokens are not
// looked at: they have no average.
type rae struct{ decay float64 }

func newRAE(o Options) Algorithm { return rae{o.RAEDecay} }

func (a rae) Credits(g Group) []Credit {
	credits := make([]Credit, len(g.Members))
	for i := range g.Members {
		m := &g.Members[i]
		if m.Reward == nil {
			continue
		}
		k := Key{g.Env, m.Agent}
		before := g.Averages[k]
		credits[i] = Credit{RL: true, All: narrow(*m.Reward - before)}
		g.Averages[k] = finite(float64(a.decay*before) + float64((1-a.decay)**m.Reward))
	}
	return credits
}

// finite is the nearest finite number.
func finite(v float64) float64 { return min(max(v, -math.MaxFloat64), math.MaxFloat64) }
