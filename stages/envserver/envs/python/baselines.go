package python

import (
	"encoding/json"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Baselines implements [env.Baseliner]; both figures are exact over the split. "copy" is a function that returns its first
// argument, "blind" one that returns always the same, the value that does best over all tasks.
func (p *Python) Baselines(split env.Split) map[string]float64 {
	tasks := p.tasks[split]
	reward := func(value func(test) json.RawMessage) float64 {
		var sum float64
		for _, t := range tasks {
			passed := 0.0
			for _, one := range t.Tests {
				if v := value(one); v != nil && equal(v, one.Want) {
					passed++
				}
			}
			share := passed / float64(len(t.Tests))
			sum += p.cfg.Weights.Tests*share + p.cfg.Weights.Solved*env.Bool(share == 1)
		}
		return sum / float64(max(len(tasks), 1))
	}
	first := reward(func(t test) json.RawMessage {
		if len(t.Args) == 0 {
			return nil
		}
		return t.Args[0]
	})
	best := 0.0
	seen := map[string]bool{}
	for _, t := range tasks {
		for _, one := range t.Tests {
			if want := one.Want; len(seen) < 1000 && !seen[string(want)] {
				seen[string(want)] = true
				best = max(best, reward(func(test) json.RawMessage { return want }))
			}
		}
	}
	return map[string]float64{"copy": first, "blind": best}
}
