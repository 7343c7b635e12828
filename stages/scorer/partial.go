package scorer

import (
	"fmt"
	"slices"

	"github.com/prl-project/prl/schemas"
)

// A Partial says what happens to a group of which rollouts failed. A failed rollout is never a zero reward.
type Partial string

const (
	// Refill asks the emitter for the missing rollouts again, up to emitter.max_attempts. A rollout that fails for good,
	// or a deadline, ends the group without samples.
	Refill Partial = "refill"
	// Train makes do with the rollouts that did not fail, if there are at least min_group_size.
	Train Partial = "train"
	// Drop ends the group without samples.
	Drop Partial = "drop"
)

func (p Partial) validate() error {
	if p != Refill && p != Train && p != Drop {
		return fmt.Errorf("partial = %q: %s, %s or %s", p, Refill, Train, Drop)
	}
	return nil
}

// whole is the rollout index that names all rollouts of a group, where the environment scores groups.
const whole = -1

// index is what is asked for where the rollout of a trace failed.
func index(t *schemas.Trace) int {
	if t.GroupRun != "" {
		return whole
	}
	return t.RolloutIndex
}

// missing is the request for what a failed trace has left missing; nil where nothing is to be asked for: the rollout has
// a trace without error, it was asked for already, it may not be tried again, or the group is over.
//
// It follows from the group's traces alone, so a group that is built again from them asks for the same; what it asks for
// then was asked for before and is thrown away.
func (g *group) missing(t *schemas.Trace, maxAttempts int) *schemas.Request {
	i := index(t)
	if !failed(t) || g.over != "" || g.broken != nil || t.Attempt < g.asked[i] || t.Attempt >= maxAttempts {
		return nil
	}
	if slices.ContainsFunc(g.attempts, func(a attempt) bool { return a.run == t.GroupRun && !failed(a.traces[t.RolloutIndex]) }) {
		return nil
	}
	if g.asked == nil {
		g.asked = map[int]int{}
	}
	g.asked[i] = t.Attempt + 1
	rollouts := 1
	if i == whole {
		rollouts = g.first.GroupSize
	}
	return &schemas.Request{Kind: schemas.RequestRefill, GroupID: t.GroupID, RolloutIndex: i, Attempt: t.Attempt + 1, Rollouts: rollouts}
}

// awaited reports whether a failed trace is not the last word: the rollout was asked for again.
func (g *group) awaited(t *schemas.Trace) bool {
	return failed(t) && g.over == "" && t.Attempt < g.asked[index(t)]
}
