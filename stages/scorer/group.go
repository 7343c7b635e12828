package scorer

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A group is the traces of an open group.
type group struct {
	first *schemas.Trace // what the group's records say comes from it
	refs  []pipeline.Ref
	// attempts at the whole group, in the order of their first traces. Where rollouts are scored one by one there is
	// only the unnamed one; an environment that scores groups names each run of a task, and as a reward means something
	// only beside those it was given with, traces of different runs are not mixed.
	attempts []attempt
	// broken ends the group: traces disagree about what it is.
	broken *schemas.Trace
	// over is the fate of the first rollout that timed out, was cancelled, or turned stale without a trace that stands for
	// it: nothing is asked for any more.
	over string
	// asked is, by rollout index, the newest attempt that was asked for.
	asked map[int]int
}

type attempt struct {
	run    string
	traces map[int]*schemas.Trace // by rollout index
}

func newGroup(first *schemas.Trace) *group { return &group{first: first} }

// add takes a trace: the first of its rollout, or the first without error; of failures the first of the latest attempt.
// It reports whether there was one of the same attempt already.
func (g *group) add(t *schemas.Trace) (second bool) {
	if t.GroupSize != g.first.GroupSize || t.Env != g.first.Env {
		failed := *t
		failed.Nodes, failed.RolloutIndex = nil, min(t.RolloutIndex, g.first.GroupSize-1)
		failed.Errors = []schemas.TraceError{{Type: "disagreement", Message: fmt.Sprintf(
			"a trace of %d rollouts of %s in a group of %d of %s", t.GroupSize, t.Env, g.first.GroupSize, g.first.Env)}}
		g.broken = &failed
		return false
	}
	i := slices.IndexFunc(g.attempts, func(a attempt) bool { return a.run == t.GroupRun })
	if i < 0 {
		i = len(g.attempts)
		g.attempts = append(g.attempts, attempt{t.GroupRun, map[int]*schemas.Trace{}})
	}
	known := g.attempts[i].traces[t.RolloutIndex]
	good := known != nil && !failed(known)
	if known == nil || failed(known) && (!failed(t) || t.Attempt > known.Attempt) {
		g.attempts[i].traces[t.RolloutIndex] = t
	}
	switch f := fate(t); {
	case g.over != "" || f == "" || f == schemas.FateErrored:
	case f == schemas.FateStale && good: // it was run twice, and this run was the slower
	default:
		g.over = f
	}
	return known != nil && known.Attempt == t.Attempt
}

// complete gives the traces that decide the group, in the order of their rollouts, or nil while some are missing or were
// asked for again.
//
// It is the first attempt that is complete without error, or else the first that is complete, where a failure outside of
// any named run (the emitter's, at the deadline) stands for a rollout that the run has not delivered. The unnamed attempt
// decides only where there is no other.
func (g *group) complete() []*schemas.Trace {
	if g.broken != nil {
		return g.withBroken()
	}
	unnamed := g.unnamed()
	var decisive []*schemas.Trace
	for _, a := range g.attempts {
		if a.run == "" && len(g.attempts) > 1 {
			continue
		}
		traces := a.complete(g.first.GroupSize, unnamed)
		switch {
		case traces == nil || slices.ContainsFunc(traces, g.awaited):
		case !slices.ContainsFunc(traces, failed):
			return traces
		case decisive == nil:
			decisive = traces
		}
	}
	return decisive
}

// unnamed are the traces of no named run.
func (g *group) unnamed() map[int]*schemas.Trace {
	for _, a := range g.attempts {
		if a.run == "" {
			return a.traces
		}
	}
	return nil
}

// withBroken gives what there is of a group whose traces disagree.
func (g *group) withBroken() []*schemas.Trace {
	known := map[int]*schemas.Trace{g.broken.RolloutIndex: g.broken}
	for _, a := range g.attempts {
		for i, t := range a.traces {
			if known[i] == nil {
				known[i] = t
			}
		}
	}
	var traces []*schemas.Trace
	for _, i := range slices.Sorted(maps.Keys(known)) {
		traces = append(traces, known[i])
	}
	return traces
}

func (a attempt) complete(size int, unnamed map[int]*schemas.Trace) []*schemas.Trace {
	if len(a.traces)+len(unnamed) < size {
		return nil
	}
	traces := make([]*schemas.Trace, 0, len(a.traces)+len(unnamed))
	for i := range size {
		t := a.traces[i]
		if late := unnamed[i]; t == nil && late != nil && failed(late) {
			t = late
		}
		if t == nil {
			return nil
		}
		traces = append(traces, t)
	}
	return traces
}

func failed(t *schemas.Trace) bool { return len(t.Errors) > 0 }

// reason is why a group of these traces has failed rollouts: the fate that says most about the whole group comes first.
// It is empty where no rollout failed.
func (g *group) reason(traces []*schemas.Trace) string {
	fates := map[string]bool{}
	for _, t := range traces {
		fates[fate(t)] = true
	}
	if delete(fates, ""); len(fates) > 0 && g.over != "" {
		fates[g.over] = true // of a rollout that a trace without error stands for
	}
	for _, f := range []string{schemas.FateTimedOut, schemas.FateCancelled, schemas.FateStale, schemas.FateErrored} {
		if fates[f] {
			return f
		}
	}
	return ""
}

// fate of a failed rollout; empty for one without error.
func fate(t *schemas.Trace) string {
	if !failed(t) {
		return ""
	}
	switch t.Errors[0].Type {
	case schemas.ErrorTimedOut:
		return schemas.FateTimedOut
	case schemas.ErrorCancelled:
		return schemas.FateCancelled
	case schemas.ErrorStale:
		return schemas.FateStale
	}
	return schemas.FateErrored
}

// describe is a rollout's line in the records of its group. In a group that failed, a rollout without error shares the
// group's fate.
func describe(t *schemas.Trace) schemas.RolloutFate {
	tokens, _ := branchSizes(t)
	f := schemas.RolloutFate{
		RolloutIndex: t.RolloutIndex, Attempt: t.Attempt, Fate: fate(t), PolicyStart: policyStart(t),
		Tokens: int(min(tokens, maxBranchTokens)), Truncated: t.Truncated,
	}
	if failed(t) {
		f.Error = t.Errors[0].Type + ": " + t.Errors[0].Message
	} else {
		f.Reward = t.Reward
	}
	return f
}
