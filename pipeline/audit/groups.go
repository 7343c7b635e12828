package audit

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A group is what the topics say of one group.
type group struct {
	key groupKey

	// As its first task says; size is 0 where there is none.
	size     int
	task     schemas.Task      // without the JSON where that is empty
	whole    bool              // one task asks for all rollouts
	asked    map[attempt]int64 // seeds
	disagree bool              // a trace is of another size or environment
	finer    bool              // its environment rewards single tokens, or agents apart

	traces   map[int][]*trace // by rollout, in the order of the log
	json     string           // of the task as played, canonical; of the first trace without error
	scored   *scored
	rescored int  // further SampleGroups
	lost     bool // a SampleGroup of it cannot be read
	outcomes []*outcome
	packed   map[sampleKey]packed

	waitingTrace, waitingSamples *pipeline.Ref // the first that its stage has not finished
	spentTrace, spentSamples     *pipeline.Ref // the first that its stage has finished
	played                       []played
}

// attempt names a task of a group; index -1 asks for all rollouts.
type attempt struct{ index, number int }

// played is a task that an environment server has finished.
type played struct {
	index int
	ref   pipeline.Ref
}

// sampleKey names a sample of a group.
type sampleKey struct{ rollout, branch int }

func sortedGroups(groups map[groupKey]*group) []groupKey {
	return slices.SortedFunc(maps.Keys(groups), func(a, b groupKey) int {
		return cmp.Or(strings.Compare(a.eval, b.eval), cmp.Compare(a.id, b.id))
	})
}

// task notes what was asked for. An injected task asks for nothing: at most it makes a rollout run twice.
func (a *auditor) task(r record, t *schemas.Task) {
	if r.Injected {
		return
	}
	g := a.group(groupKey{t.Eval, t.GroupID})
	if env, _ := pipeline.EnvOfTasks(r.Topic); env != t.Env {
		a.violate(NoEnvironment, "%v: a task of environment %s", r.Ref, t.Env)
	}
	if g.asked == nil {
		g.asked, g.size, g.task, g.whole = map[attempt]int64{}, t.GroupSize, *t, t.RolloutIndex < 0
	}
	if _, twice := g.asked[attempt{t.RolloutIndex, t.Attempt}]; twice {
		a.violate(OneOutcome, "%v: %v, rollout %d, attempt %d was emitted before", r.Ref, g.key, t.RolloutIndex, t.Attempt)
	}
	g.asked[attempt{t.RolloutIndex, t.Attempt}] = t.Seed
	f := &g.task
	if t.Env != f.Env || t.GroupSize != f.GroupSize || t.TaskIndex != f.TaskIndex || t.GroupSeed != f.GroupSeed || t.Task != f.Task ||
		t.Split != f.Split || (t.RolloutIndex < 0) != g.whole || t.Step != f.Step || t.Wave != f.Wave || !same(t.PinVersion, f.PinVersion) {
		a.violate(Determinism, "%v: the tasks of %v are not of one task", r.Ref, g.key)
	}
	if t.Eval == "" && !(t.Temperature > 0) {
		a.violate(TokenExactness, "%v: %v is sampled at temperature %v", r.Ref, g.key, t.Temperature)
	}
	if t.Eval == "" && t.TopP != 1 {
		a.violate(TokenExactness, "%v: %v is sampled with top_p %v", r.Ref, g.key, t.TopP)
	}
	a.checkWave(r.Ref, t)
}

// checkWave holds a training task to the ordered mode: step s is sampled by version s-1, group by group of its wave.
func (a *auditor) checkWave(ref pipeline.Ref, t *schemas.Task) {
	if t.Eval != "" || !a.run.Ordered() {
		return
	}
	if t.Step < 1 || t.Wave < 1 || t.GroupID < t.WaveFirst || t.GroupID > t.WaveLast {
		a.violate(Determinism, "%v: group %d of step %d, wave %d, is not among the groups %d to %d of the wave", ref, t.GroupID, t.Step, t.Wave, t.WaveFirst, t.WaveLast)
	}
	if t.PinVersion == nil || *t.PinVersion != t.Step-1 {
		a.violate(Determinism, "%v: group %d of step %d is not pinned to version %d", ref, t.GroupID, t.Step, t.Step-1)
	}
}

// checkNumbers holds the groups of the run, and those of each eval, to being numbered from 0 without a hole. A run that
// began with a version of another one goes on with the other's numbers.
func (a *auditor) checkNumbers() {
	first, last, count := map[string]int64{}, map[string]int64{}, map[string]int64{}
	for k, g := range a.groups {
		if g.size == 0 {
			continue
		}
		if a.policies.branched() && k.eval == "" && (count[""] == 0 || k.id < first[""]) {
			first[""] = k.id
		}
		last[k.eval] = max(last[k.eval], k.id)
		count[k.eval]++
	}
	for eval, n := range count {
		if want := last[eval] - first[eval] + 1; n != want {
			a.violate(OneOutcome, "%v is the last of %d groups: %d were never emitted", groupKey{eval, last[eval]}, n, want-n)
		}
	}
}

// checkGroup holds all that is known of a group against each other.
func (a *auditor) checkGroup(g *group) {
	if g.size == 0 {
		if g.scored != nil || len(g.outcomes) > 0 || len(g.packed) > 0 || g.hasOwnTrace() {
			a.violate(OneOutcome, "%v has records and was never emitted", g.key)
		}
		return
	}
	if g.key.eval == "" {
		a.report.Groups++
		a.report.Rollouts += int64(g.size)
	} else {
		a.report.EvalGroups++
	}
	a.checkAsked(g)
	a.checkPlayed(g)
	a.checkDecided(g)
	a.checkScored(g)
	a.checkPacked(g)
	for _, o := range g.outcomes {
		a.checkOutcome(g, o)
	}
}

func (g *group) hasOwnTrace() bool {
	for _, traces := range g.traces {
		for _, t := range traces {
			if !t.injected {
				return true
			}
		}
	}
	return false
}

// checkAsked holds a group to having been asked for whole.
func (a *auditor) checkAsked(g *group) {
	for i := range g.size {
		index := i
		if g.whole {
			index = -1
		}
		if _, ok := g.asked[attempt{index, 0}]; !ok {
			a.violate(OneOutcome, "%v: rollout %d of %d was never emitted", g.key, i, g.size)
		}
	}
}

// checkPlayed holds tasks that an environment server has finished to having left a trace of every rollout.
func (a *auditor) checkPlayed(g *group) {
	for _, p := range g.played {
		for i := range g.size {
			if (p.index == i || p.index < 0) && len(g.traces[i]) == 0 {
				a.violate(TrainedOnce, "%v is finished, and rollout %d of %v has no trace", p.ref, i, g.key)
			}
		}
	}
}

// checkDecided counts the decisions on a group and holds them to what the stages have finished.
func (a *auditor) checkDecided(g *group) {
	training, outcomes := g.key.eval == "", len(g.outcomes)
	switch {
	case outcomes > 1:
		a.violate(OneOutcome, "%v has %d outcomes", g.key, outcomes)
	case outcomes == 0 && a.cfg.Ended && !pipeline.EvalByHand(g.key.eval): // those may be left in the middle
		a.violate(OneOutcome, "%v of %s has no outcome (%d of %d rollouts have traces)", g.key, g.task.Env, len(g.traces), g.size)
	}
	if g.rescored > 0 {
		a.violate(OneOutcome, "%v was scored %d times", g.key, g.rescored+1)
	}
	if training && g.spentTrace != nil && g.scored == nil && !g.lost {
		a.violate(TrainedOnce, "%v is finished, and %v was never scored", *g.spentTrace, g.key)
	}
	if training && g.spentSamples != nil && outcomes == 0 {
		a.violate(TrainedOnce, "%v is finished, and %v has no outcome", *g.spentSamples, g.key)
	}
	if w := g.waitingTrace; w != nil && (a.cfg.Ended || training && g.scored != nil) {
		a.violate(BadInput, "%v is still unfinished, though %v is decided or the run has ended", *w, g.key)
	}
	if w := g.waitingSamples; w != nil && (a.cfg.Ended || outcomes > 0) {
		a.violate(BadInput, "%v is still unfinished, though %v has its outcome or the run has ended", *w, g.key)
	}
}

func same[T comparable](a, b *T) bool {
	return a == nil && b == nil || a != nil && b != nil && *a == *b
}
