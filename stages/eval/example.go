package eval

import (
	"fmt"
	"slices"

	"github.com/prl-project/prl/schemas"
)

// taskKey names a task of an environment: the same index is another task in another split.
type taskKey struct {
	split string
	index int64
}

// example collects the rollouts of one held-out task.
type example struct {
	task     taskKey   // as its traces say
	attempts []attempt // until it is decided
	emitted  bool      // its tasks are out, or whoever has it was asked before
	decided  bool
	rollouts []*rollout
	asked    []int // of an eval by hand: the attempt asked for last, by rollout; nil where that is 0 of all
	due      []ask // of an eval by hand that goes on: what is asked for now; nil for all rollouts
}

// ask names a task of an example: a rollout and its attempt; index -1 is the whole group.
type ask struct{ index, attempt int }

// asks are the tasks to be emitted for an example. What was due and has come late meanwhile is not asked for.
func (x *example) asks(k int, whole bool) []ask {
	if x.decided {
		return nil
	}
	if x.due != nil {
		return slices.DeleteFunc(slices.Clone(x.due), func(a ask) bool {
			return a.index >= 0 && slices.ContainsFunc(x.attempts, func(run attempt) bool { return run.rollouts[a.index] != nil })
		})
	}
	if whole {
		return []ask{{-1, 0}}
	}
	all := make([]ask, k)
	for i := range all {
		all[i].index = i
	}
	return all
}

// attempt is the number of the attempt at a rollout that was asked for last.
func (x *example) attempt(index int) int {
	if x.asked == nil {
		return 0
	}
	return x.asked[index]
}

// attempt is one run of the whole example: all traces where rollouts are tasks of their own, one run's where the
// environment plays the group as one task (several servers may have played it).
type attempt struct {
	groupRun string
	rollouts []*rollout // by index; nil while missing
}

// rollout is what is kept of a trace.
type rollout struct {
	fate    schemas.RolloutFate
	rewards map[string]*float64
	metrics map[string]float64
}

func (r *rollout) ok() bool { return r.fate.Fate == schemas.FateEvaluated }

// accepts refuses a trace that is not of the round's version, or policy, or shape.
func (r *round) accepts(t *schemas.Trace) error {
	if t.GroupSize != r.K || t.RolloutIndex < 0 || t.RolloutIndex >= r.K {
		return fmt.Errorf("group %d of eval %s: rollout %d of %d, where %d were emitted", t.GroupID, t.Eval, t.RolloutIndex, t.GroupSize, r.K)
	}
	other := func(v *int64) bool { return v != nil && *v != r.Version }
	if schemas.FrozenPolicy(t.Policy) != r.policy {
		return fmt.Errorf("group %d of eval %s: played by the policy %q, not %q", t.GroupID, t.Eval, t.Policy, r.policy)
	}
	if r.policy != "" {
		return nil
	}
	if t.PinVersion == nil || other(t.PinVersion) || len(t.Errors) == 0 && (other(t.PolicyStart) || other(t.PolicyEnd)) {
		return fmt.Errorf("group %d of eval %s: played by another version than %d", t.GroupID, t.Eval, r.Version)
	}
	return nil
}

// add notes a trace of so many tokens and reports whether it changed anything: the first of an index does, and the first without error. A
// failure of an earlier attempt than the last changes nothing.
func (x *example) add(t *schemas.Trace, tokens, k int) bool {
	if x.decided || len(t.Errors) > 0 && t.Attempt < x.attempt(t.RolloutIndex) {
		return false
	}
	x.task = taskKey{t.Split, t.TaskIndex}
	i := slices.IndexFunc(x.attempts, func(a attempt) bool { return a.groupRun == t.GroupRun })
	if i < 0 {
		i = len(x.attempts)
		x.attempts = append(x.attempts, attempt{t.GroupRun, make([]*rollout, k)})
	}
	slot := &x.attempts[i].rollouts[t.RolloutIndex]
	if *slot != nil && ((*slot).ok() || len(t.Errors) > 0) {
		return false
	}
	*slot = newRollout(t, tokens)
	return true
}

// complete is the rollouts of an attempt that has all of them; nil where there is none.
func (x *example) complete() []*rollout {
	for _, a := range x.attempts {
		if !slices.Contains(a.rollouts, nil) {
			return a.rollouts
		}
	}
	return nil
}

func (x *example) decide(rollouts []*rollout) {
	x.decided, x.rollouts, x.attempts = true, rollouts, nil
}

func newRollout(t *schemas.Trace, tokens int) *rollout {
	r := &rollout{fate: schemas.RolloutFate{
		RolloutIndex: t.RolloutIndex, Attempt: t.Attempt, Fate: schemas.FateEvaluated, Reward: t.Reward,
		PolicyStart: t.PolicyStart, Tokens: tokens, Truncated: t.Truncated,
	}}
	if len(t.Errors) == 0 {
		r.rewards, r.metrics = t.Rewards, t.Metrics
		return r
	}
	e := t.Errors[0]
	r.fate.Reward, r.fate.Error = nil, e.Type+": "+e.Message
	switch e.Type {
	case schemas.ErrorTimedOut:
		r.fate.Fate = schemas.FateTimedOut
	case schemas.ErrorCancelled:
		r.fate.Fate = schemas.FateCancelled
	default:
		r.fate.Fate = schemas.FateErrored
	}
	return r
}

// tokens counts those of all branches: what several branches share counts in each.
func tokens(nodes []schemas.Node) int {
	path, leaf := make([]int, len(nodes)), make([]bool, len(nodes))
	for i, n := range nodes {
		path[i], leaf[i] = n.TokenIDs.Len(), true
		if n.Parent >= 0 {
			path[i] += path[n.Parent]
			leaf[n.Parent] = false
		}
	}
	sum := 0
	for i, n := range path {
		if leaf[i] {
			sum += n
		}
	}
	return sum
}
