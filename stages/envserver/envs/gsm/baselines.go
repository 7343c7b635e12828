package gsm

import "github.com/prl-project/prl/stages/envserver/env"

// Baselines implements [env.Baseliner]; the figures are exact over the split. "blind" is the best single answer to every problem,
// which is the best that can be done without looking; "random", where the problems are made here, a uniformly random number from 1
// to the largest.
func (g *GSM) Baselines(split env.Split) map[string]float64 {
	tasks := g.tasks[split]
	counts := map[string]int{}
	most := 0
	for _, t := range tasks {
		counts[t.Answer]++
		most = max(most, counts[t.Answer])
	}
	baselines := map[string]float64{"blind": float64(most) / float64(max(len(tasks), 1))}
	if g.cfg.File == "" {
		baselines["random"] = 1 / float64(g.cfg.Largest)
	}
	return baselines
}
