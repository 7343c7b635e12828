package gsm

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

var (
	people = strings.Fields("Ada Bela Carla Dina Emil Farid Greta Hana Ivan Jin Kofi Lena Mira Noor Otto Priya Rosa Sven Tara Yuki")
	things = strings.Fields("apples books cards coins eggs flowers hats keys marbles pears pens shells stamps stickers tickets toys")
)

// generated makes the problems of a configuration without a file.
func (c Config) generated() (map[env.Split][]task, error) {
	splits := map[env.Split][]task{}
	for split, n := range map[env.Split]int{env.Train: c.TrainTasks, env.Eval: c.EvalTasks} {
		what := fmt.Sprintf("gsm of steps = %d, largest = %d", c.Steps, c.Largest)
		for index := range n {
			t, err := env.Draw(what, split, index, c.EvalPercent, func(rng *rand.Rand) (task, string) {
				t := c.story(rng)
				return t, t.Question
			})
			if err != nil {
				return nil, err
			}
			splits[split] = append(splits[split], t)
		}
	}
	return splits, nil
}

// story is a problem of some steps. All numbers in it are whole, at least 1, and at most the largest.
func (c Config) story(rng *rand.Rand) task {
	who := people[rng.IntN(len(people))]
	thing := things[rng.IntN(len(things))]
	have := 1 + rng.IntN(c.Largest)
	parts := []string{fmt.Sprintf("%s has %d %s.", who, have, thing)}
	for range c.Steps {
		sentence, now := c.event(rng, who, have)
		parts, have = append(parts, sentence), now
	}
	parts = append(parts, fmt.Sprintf("How many %s does %s have now?", thing, who))
	return task{Question: strings.Join(parts, " "), Answer: strconv.Itoa(have)}
}

// event is something that happens to what somebody has: one of those that are possible.
func (c Config) event(rng *rand.Rand, who string, have int) (sentence string, now int) {
	for {
		switch rng.IntN(4) {
		case 0:
			if room := c.Largest - have; room > 0 {
				n := 1 + rng.IntN(room)
				return fmt.Sprintf("%s finds %d more.", who, n), have + n
			}
		case 1:
			if have > 1 {
				n := 1 + rng.IntN(have-1)
				return fmt.Sprintf("%s gives away %d.", who, n), have - n
			}
		case 2:
			if most := c.Largest / have; most > 1 {
				n := 2 + rng.IntN(min(most, 5)-1)
				return fmt.Sprintf("A friend brings more, until there are %d times as many.", n), have * n
			}
		case 3:
			var divisors []int
			for d := 2; d <= min(have, 5); d++ {
				if have%d == 0 {
					divisors = append(divisors, d)
				}
			}
			if len(divisors) > 0 {
				d := divisors[rng.IntN(len(divisors))]
				return fmt.Sprintf("%s keeps one part of %d equal parts and sells the rest.", who, d), have / d
			}
		}
	}
}
