package alphabetsort

import (
	"context"
	"maps"
	"math/rand/v2"

	"github.com/prl-project/prl/stages/envserver/env"
)

const randomGames = 2000

// Baselines implements [env.Baseliner]: "copy" says all names so far in the order in which they came, marked rightly (exact over the
// split), "random" says them in random order (the mean of 2,000 seeded games).
func (a *AlphabetSort) Baselines(split env.Split) map[string]float64 {
	if baselines, ok := a.baselines[split]; ok {
		return maps.Clone(baselines())
	}
	return nil
}

func (a *AlphabetSort) measure(split env.Split) map[string]float64 {
	var tasks []task
	for index := range a.Info().Tasks(split) {
		t, err := a.draw(split, index)
		if err != nil {
			return nil // New has drawn from both splits
		}
		tasks = append(tasks, t)
	}
	var same, random float64
	for _, t := range tasks {
		same += a.play(t, func([]string) {})
	}
	rng := rand.New(rand.NewPCG(1, 0))
	for i := range randomGames {
		random += a.play(tasks[i%len(tasks)], func(names []string) {
			rng.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		})
	}
	return map[string]float64{"copy": same / float64(len(tasks)), "random": random / randomGames}
}

// play is the reward of a player that marks new names and puts all into some order.
func (a *AlphabetSort) play(t task, order func(names []string)) float64 {
	e := &episode{cfg: a.cfg, task: t}
	var names []string // before this turn
	for turn, fresh := range t.Turns {
		answer := append([]string(nil), names...)
		for _, n := range fresh {
			if turn > 0 {
				n += e.mark()
			}
			answer = append(answer, n)
		}
		order(answer)
		e.answers = append(e.answers, answer)
		names = append(names, fresh...)
	}
	score, _ := e.Score(context.Background()) // never an error
	return *score.Rewards.Total()
}
