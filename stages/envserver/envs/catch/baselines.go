package catch

import "github.com/prl-project/prl/stages/envserver/env"

// Baselines implements [env.Baseliner]; both figures are exact over the tasks of the split. "random" moves l, s or r with equal
// probability; "blind" is the best fixed sequence of moves, which is the best that can be done without looking.
func (c *Catch) Baselines(split env.Split) map[string]float64 {
	starts := c.starts[split]
	weights := make([]float64, len(starts)) // share of the split's tasks
	n := c.Info().Tasks(split)
	for i := range starts {
		count := n / len(starts)
		if i < n%len(starts) {
			count++
		}
		weights[i] = float64(count) / float64(n)
	}
	var random, blind float64
	reach := c.randomWalk()
	for i, s := range starts {
		random += weights[i] * reach[s.Paddle][s.Ball]
	}
	for _, end := range c.sequences() {
		var caught float64
		for i, s := range starts {
			caught += weights[i] * env.Bool(int(end[s.Paddle]) == s.Ball)
		}
		blind = max(blind, caught)
	}
	return map[string]float64{"random": random, "blind": blind}
}

// randomWalk is the probability that a random player is in column [to] at the end when it started in column [from].
func (c *Catch) randomWalk() [][]float64 {
	n := c.cfg.Columns
	walk := make([][]float64, n)
	for from := range walk {
		p := make([]float64, n)
		p[from] = 1
		for range c.cfg.Rows - 1 {
			next := make([]float64, n)
			for column, share := range p {
				for _, step := range []int{-1, 0, 1} {
					next[clamp(column+step, n)] += share / 3
				}
			}
			p = next
		}
		walk[from] = p
	}
	return walk
}

// sequences is where fixed sequences of moves lead: for each that differs from the others, byte [from] is the column in which a
// paddle ends that started in column from. There are fewer than columns³ of them, although there are 3^moves sequences.
func (c *Catch) sequences() []string {
	n := c.cfg.Columns
	identity := make([]byte, n)
	for i := range identity {
		identity[i] = byte(i)
	}
	reached := map[string]bool{string(identity): true} // staying is a move, so no sequence is ever left behind
	frontier := []string{string(identity)}
	for range c.cfg.Rows - 1 {
		var next []string
		for _, at := range frontier {
			for _, step := range []int{-1, 1} {
				moved := []byte(at)
				for i := range moved {
					moved[i] = byte(clamp(int(moved[i])+step, n))
				}
				if !reached[string(moved)] {
					reached[string(moved)] = true
					next = append(next, string(moved))
				}
			}
		}
		frontier = next
	}
	ends := make([]string, 0, len(reached))
	for end := range reached {
		ends = append(ends, end)
	}
	return ends
}
