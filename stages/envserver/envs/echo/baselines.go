package echo

import "github.com/prl-project/prl/stages/envserver/env"

// Baselines implements [env.Baseliner]; both figures are exact over the tasks of the split. "random" answers as many uniformly
// random characters of the alphabet, "blind" the best single text to every task, which is the best that can be done without
// looking.
func (e *Echo) Baselines(split env.Split) map[string]float64 {
	n := e.Info().Tasks(split)
	counts := make([]map[rune]int, e.cfg.Length) // of the characters at a position
	for i := range counts {
		counts[i] = map[rune]int{}
	}
	for index := range n {
		text, err := e.draw(split, index)
		if err != nil {
			return nil // New has drawn from both splits
		}
		for i, c := range []rune(text) {
			counts[i][c]++
		}
	}
	most := 0
	for _, position := range counts {
		best := 0
		for _, count := range position {
			best = max(best, count)
		}
		most += best
	}
	return map[string]float64{"random": 1 / float64(len(e.alphabet)), "blind": float64(most) / float64(n*e.cfg.Length)}
}
