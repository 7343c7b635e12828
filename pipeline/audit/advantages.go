package audit

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
)

// checkAdvantages computes the advantages of a group again from the rewards of its rollouts, where no token and no agent
// has a reward of its own: one number for all trained tokens of a rollout.
func (a *auditor) checkAdvantages(g *group) {
	kind := a.cfg.Advantages[g.task.Env]
	if kind == "" || g.finer || len(g.scored.samples) == 0 {
		return
	}
	want, slack := advantages(g.scored.rewards(), kind)
	for _, key := range sortedSamples(g.scored.samples) {
		p := g.scored.samples[key]
		if p.low > p.high {
			continue // it only imitates
		}
		w, ok := want[key.rollout]
		if !ok {
			a.violate(Determinism, "%v: rollout %d of %v has no reward and is trained on", g.scored.ref, key.rollout, g.key)
			continue
		}
		if !(math.Abs(float64(p.low)-w) <= slack && math.Abs(float64(p.high)-w) <= slack) {
			a.violate(Determinism, "%v: rollout %d, branch %d of %v has advantages from %v to %v, its reward gives %v", g.scored.ref, key.rollout, key.branch, g.key, p.low, p.high, w)
		}
	}
}

// rewards are those of the rollouts that have one.
func (s *scored) rewards() map[int]float64 {
	rewards := map[int]float64{}
	for i := range s.rollouts {
		if f := &s.rollouts[i]; f.Reward != nil {
			rewards[f.RolloutIndex] = *f.Reward
		}
	}
	return rewards
}

// advantages also gives what rounding to float32 may change.
func advantages(rewards map[int]float64, kind Advantage) (want map[int]float64, slack float64) {
	want = map[int]float64{}
	n, mean, most := float64(len(rewards)), 0.0, 0.0
	for _, r := range rewards {
		mean += r / n
		most = max(most, math.Abs(r))
	}
	spread := 0.0
	for i, r := range rewards {
		want[i] = r - mean
		spread += want[i] * want[i] / n
	}
	slack = 1e-5 * most
	if kind == Standardized && spread > 0 {
		for i := range want {
			want[i] /= math.Sqrt(spread)
		}
		slack = 1e-4 * math.Sqrt(n)
	}
	return want, slack
}

func sortedSamples[T any](samples map[sampleKey]T) []sampleKey {
	return slices.SortedFunc(maps.Keys(samples), func(a, b sampleKey) int {
		return cmp.Or(cmp.Compare(a.rollout, b.rollout), cmp.Compare(a.branch, b.branch))
	})
}

func reward(r *float64) string {
	if r == nil {
		return "none"
	}
	return strconv.FormatFloat(*r, 'g', -1, 64)
}
