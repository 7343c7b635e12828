package reversetext

import "github.com/prl-project/prl/stages/envserver/env"

// Baselines implements [env.Baseliner]; all figures are exact over the texts of the split. "copy" answers the text as it was
// shown, "random" a uniformly random length within the bounds and uniformly random letters a to z, "constant" the best single
// answer to every text, which is the best that can be done without looking.
func (r *ReverseText) Baselines(split env.Split) map[string]float64 {
	texts := r.texts[split]
	var same, random float64
	for _, text := range texts {
		truth := reverse(text)
		same += agreement([]rune(text), truth)
		random += r.random(truth)
	}
	n := float64(len(texts))
	return map[string]float64{"copy": same / n, "random": random / n, "constant": r.constant(texts) / n}
}

// random is the expected reward of a random answer: each letter that has a counterpart is right once in 26 times.
func (r *ReverseText) random(truth []rune) float64 {
	var sum float64
	letters := 0 // among the first length positions
	for length := 1; length <= r.cfg.MaxLength; length++ {
		if length <= len(truth) && truth[length-1] != ' ' {
			letters++
		}
		if length >= r.cfg.MinLength {
			sum += float64(letters) / 26 / float64(max(length, len(truth)))
		}
	}
	return sum / float64(r.cfg.MaxLength-r.cfg.MinLength+1)
}

// constant is the summed reward of the best fixed answer. For an answer of a given length every position counts by itself, so
// the best character of each is the one with the most weight.
func (r *ReverseText) constant(texts []string) float64 {
	best := 0.0
	for length := 1; length <= r.cfg.MaxLength; length++ {
		weight := make([]map[rune]float64, length)
		for i := range weight {
			weight[i] = map[rune]float64{}
		}
		for _, text := range texts {
			truth := reverse(text)
			for i := range min(length, len(truth)) {
				weight[i][truth[i]] += 1 / float64(max(length, len(truth)))
			}
		}
		var sum float64
		for _, position := range weight {
			most := 0.0
			for _, w := range position {
				most = max(most, w)
			}
			sum += most
		}
		best = max(best, sum)
	}
	return best
}
