package env

import (
	"fmt"
	"math/rand/v2"
)

// draws is how often [Draw] tries: a split of one in a hundred is missed so often once in 10⁴³ tasks.
const draws = 10000

// Draw makes task index of a split of an environment that generates its tasks, the same whenever it is asked for. It draws
// tasks with one random generator after the other until the key of one is dealt to the split as [HoldOut] deals texts, about
// percent of them to eval. So the splits are disjoint whenever equal tasks have equal keys; a task may come twice in a split.
// what names the environment and its options: others draw other tasks. An error if nothing that is drawn falls to the split.
func Draw[T any](what string, split Split, index, percent int, draw func(*rand.Rand) (task T, key string)) (T, error) {
	first := Hash(fmt.Sprintf("%s %s %d", what, split, index))
	for n := range uint64(draws) {
		task, key := draw(rand.New(rand.NewPCG(first, n)))
		if heldOut(key, percent) == (split == Eval) {
			return task, nil
		}
	}
	var none T
	return none, fmt.Errorf("%s: of %d tasks none falls to split %q: allow more of them, or change eval_percent = %d", what, draws, split, percent)
}
