package audit

import (
	"cmp"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// An outcome is a GroupOutcome and where it stands.
type outcome struct {
	ref pipeline.Ref
	*schemas.GroupOutcome
}

// packOrder is the newest packed group: outcomes come step by step, and in a step in the order of their groups' ids.
type packOrder struct{ step, id int64 }

// outcome notes an outcome. An injected one decides nothing.
func (a *auditor) outcome(r record, v *schemas.GroupOutcome) {
	if r.Injected {
		return
	}
	g := a.group(groupKey{v.Eval, v.GroupID})
	g.outcomes = append(g.outcomes, &outcome{r.Ref, v})
	if v.Step == nil {
		return
	}
	at := packOrder{*v.Step, v.GroupID}
	if cmp.Or(cmp.Compare(at.step, a.lastPack.step), cmp.Compare(at.id, a.lastPack.id)) < 0 {
		a.violate(Determinism, "%v: %v of step %d comes after group %d of step %d", r.Ref, g.key, at.step, a.lastPack.id, a.lastPack.step)
	}
	a.lastPack = at
}

// fates a group may end with that the packer decides.
var packerFates = []string{schemas.FatePacked, schemas.FateStale, schemas.FateOverlong, schemas.FateErrored, schemas.FateCancelled}

// checkOutcome holds an outcome against the group's tasks, its SampleGroup and the batches.
func (a *auditor) checkOutcome(g *group, o *outcome) {
	if g.lost && len(o.Rollouts) == 0 && (o.Fate == schemas.FateErrored || o.Fate == schemas.FateCancelled) {
		return // all that is known of it is its key
	}
	if (o.Env != g.task.Env || o.TaskIndex != g.task.TaskIndex) && !g.disagree {
		a.violate(OneOutcome, "%v: the outcome of %v speaks of task %d of %s, its tasks of task %d of %s", o.ref, g.key, o.TaskIndex, o.Env, g.task.TaskIndex, g.task.Env)
	}
	if (o.Fate == schemas.FatePacked) != (o.Step != nil) {
		a.violate(TrainedOnce, "%v: the outcome of %v is %s with step %s", o.ref, g.key, o.Fate, show(o.Step))
	}
	speaks := map[int]bool{}
	for _, f := range o.Rollouts {
		speaks[f.RolloutIndex] = f.Fate != ""
	}
	for i := range g.size {
		if !speaks[i] && !g.disagree {
			a.violate(TrainedOnce, "%v: the outcome of %v (%s) does not say what became of rollout %d of %d", o.ref, g.key, o.Fate, i, g.size)
		}
	}
	if len(speaks) != len(o.Rollouts) || len(o.Rollouts) > g.size {
		a.violate(OneOutcome, "%v: the outcome of %v speaks of %d rollouts, %d were emitted", o.ref, g.key, len(o.Rollouts), g.size)
	}
	switch {
	case g.key.eval != "":
		a.checkEvaluated(g, o)
	case g.scored == nil:
		a.violate(OneOutcome, "%v: %v has an outcome and was never scored", o.ref, g.key)
	default:
		a.checkAgrees(g, o)
	}
}

// checkEvaluated holds the rollouts of an eval's example to being traces of it.
func (a *auditor) checkEvaluated(g *group, o *outcome) {
	for i := range o.Rollouts {
		f := &o.Rollouts[i]
		if !slices.ContainsFunc(g.traces[f.RolloutIndex], func(t *trace) bool { return t.is(f) }) {
			a.violate(TrainedOnce, "%v: rollout %d of %v (attempt %d, reward %s, %d tokens, error %q) is none of its %d traces",
				o.ref, f.RolloutIndex, g.key, f.Attempt, reward(f.Reward), f.Tokens, f.Error, len(g.traces[f.RolloutIndex]))
		}
	}
}

// checkAgrees holds an outcome against the SampleGroup.
func (a *auditor) checkAgrees(g *group, o *outcome) {
	s := g.scored
	switch {
	case s.reason == "" && !slices.Contains(packerFates, o.Fate),
		s.reason != "" && o.Fate != s.reason && o.Fate != schemas.FateCancelled,
		s.reason != "" && o.Fate == s.reason && o.Filter != s.filter:
		a.violate(OneOutcome, "%v: the outcome of %v is %q %q, its SampleGroup %v says %q %q", o.ref, g.key, o.Fate, o.Filter, s.ref, s.reason, s.filter)
	}
	in := map[int]bool{}
	for key := range g.packed {
		in[key.rollout] = true
	}
	for i := range s.rollouts {
		want := s.rollouts[i]
		k := slices.IndexFunc(o.Rollouts, func(f schemas.RolloutFate) bool { return f.RolloutIndex == want.RolloutIndex })
		if k < 0 {
			continue // said above
		}
		got := o.Rollouts[k]
		if got.Attempt != want.Attempt || !same(got.Reward, want.Reward) || !same(got.PolicyStart, want.PolicyStart) || got.Tokens != want.Tokens ||
			got.Truncated != want.Truncated || got.Error != want.Error {
			a.violate(OneOutcome, "%v: rollout %d of %v is not as its SampleGroup %v has it", o.ref, got.RolloutIndex, g.key, s.ref)
		}
		if wantFate := fateOf(o.Fate, want.Fate, in[want.RolloutIndex]); got.Fate != wantFate {
			a.violate(OneOutcome, "%v: rollout %d of %v is %q, its group is %q, its SampleGroup says %q, and it is in a batch: %v", o.ref, got.RolloutIndex, g.key, got.Fate, o.Fate, want.Fate, in[want.RolloutIndex])
		}
	}
}

// fateOf is a rollout's fate in an outcome.
func fateOf(group, scored string, packed bool) string {
	switch {
	case packed:
		return schemas.FatePacked
	case scored != "":
		return scored
	case group == schemas.FatePacked:
		return schemas.FateOverlong // a cut at seq_len left nothing of it
	}
	return group
}

// is reports whether a rollout's line speaks of the trace.
func (t *trace) is(f *schemas.RolloutFate) bool {
	return t.attempt == f.Attempt && t.err == f.Error && (t.err != "" || same(t.reward, f.Reward)) && same(t.start, f.PolicyStart) &&
		t.tokens == f.Tokens && t.truncated == f.Truncated
}
