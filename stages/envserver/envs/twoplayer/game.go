package twoplayer

import (
	"errors"
	"fmt"
	"math/rand/v2"
)

// kinds is how many kinds of items there are, and whole what all items are worth to an agent.
const (
	kinds = 3
	whole = 10
)

// A pile is how many items of each kind.
type pile [kinds]int

// task is the JSON of a task: the items, and what one of each kind is worth to each agent.
type task struct {
	Items  pile `json:"items"`
	First  pile `json:"first"`
	Second pile `json:"second"`
}

// generate draws a task. Every kind is worth something to somebody, and the agents do not want quite the same.
func generate(rng *rand.Rand) task {
	for {
		var t task
		n := 0
		for k := range t.Items {
			t.Items[k] = 1 + rng.IntN(4)
			n += t.Items[k]
		}
		all := valuations(t.Items)
		if n < 5 || n > 7 || len(all) < 2 {
			continue
		}
		t.First, t.Second = all[rng.IntN(len(all))], all[rng.IntN(len(all))]
		if t.check() == nil && t.First != t.Second {
			return t
		}
	}
}

// valuations are all values of the kinds at which the items are worth whole.
func valuations(items pile) (all []pile) {
	for a := 0; a*items[0] <= whole; a++ {
		for b := 0; a*items[0]+b*items[1] <= whole; b++ {
			if rest := whole - a*items[0] - b*items[1]; rest%items[2] == 0 {
				all = append(all, pile{a, b, rest / items[2]})
			}
		}
	}
	return all
}

// most bounds the numbers of a task that came from elsewhere.
const most = 1000

func (t task) check() error {
	for k, n := range t.Items {
		if n < 1 || n > most || t.First[k] < 0 || t.Second[k] < 0 || t.First[k]+t.Second[k] < 1 || t.First[k]+t.Second[k] > most {
			return fmt.Errorf("kind %d: %d items worth %d and %d; want at least one, worth something to somebody", k, n, t.First[k], t.Second[k])
		}
	}
	if t.Items.worth(t.First) == 0 || t.Items.worth(t.Second) == 0 {
		return errors.New("to one of the agents nothing is worth anything")
	}
	return nil
}

// worth is what a pile is worth at values.
func (p pile) worth(values pile) (sum int) {
	for k, n := range p {
		sum += n * values[k]
	}
	return sum
}

// rest is what is left of the items without a pile.
func (t task) rest(taken pile) (left pile) {
	for k := range left {
		left[k] = t.Items[k] - taken[k]
	}
	return left
}

// has reports whether a pile can be taken from the items.
func (t task) has(p pile) bool {
	for k, n := range p {
		if n < 0 || n > t.Items[k] {
			return false
		}
	}
	return true
}

// best is the most that both together can get.
func (t task) best() (sum int) {
	for k, n := range t.Items {
		sum += n * max(t.First[k], t.Second[k])
	}
	return sum
}
