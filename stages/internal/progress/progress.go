// Package progress is what one sees of a run while it goes, and what it says at its end, from the records of its topics
// alone.
//
// Reads: policies, outcomes, evals, envs, state (of the emitter). It writes nothing and no decision depends on it.
package progress

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Topics is what a View wants to be fed, all from the start.
var Topics = []string{pipeline.TopicPolicies, pipeline.TopicOutcomes, pipeline.TopicEvals, pipeline.TopicEnvs, pipeline.TopicState}

// A View is the run as its topics tell it.
type View struct {
	// MaxSteps is where the run ends.
	MaxSteps int64
	// Envs are the environments whose servers must have announced them before the first task.
	Envs []string
	// Here says that their servers are in this process.
	Here bool
	// OpenGroups reads the number of open groups from the emitter's state.
	OpenGroups func(core []byte) (groups, rollouts int, err error)

	announced  map[string]bool
	policy     *schemas.PolicyVersion
	first      int64                      // version with which the run began
	steps      map[int64]map[string]*mean // reward by packed step and env
	packedStep int64
	offPolicy  mean // of the newest packed step
	offMax     int64
	fates      map[string]int
	tokens     int64
	evals      map[evalKey]*schemas.EvalResult
	openGroups int
	inFlight   int
	outcomes   int
	rate       rate
}

type evalKey struct {
	name    string
	version int64
}

type mean struct {
	sum float64
	n   int
}

func (m *mean) add(v float64) { m.sum, m.n = m.sum+v, m.n+1 }

func (m *mean) value() float64 {
	if m.n == 0 {
		return 0
	}
	return m.sum / float64(m.n)
}

// rate is tokens per second over the time since the view began.
type rate struct {
	start  time.Time
	tokens int64
}

// Feed takes one record.
func (v *View) Feed(r pipeline.Record) {
	if v.steps == nil {
		v.announced = map[string]bool{}
		v.steps, v.fates, v.evals = map[int64]map[string]*mean{}, map[string]int{}, map[evalKey]*schemas.EvalResult{}
	}
	switch rec := r.Value.(type) {
	case *schemas.PolicyVersion:
		if v.policy == nil {
			v.first = rec.Version
		}
		v.policy = rec
	case *schemas.EnvInfo:
		v.announced[rec.Env] = true
	case *schemas.GroupOutcome:
		v.outcome(rec)
	case *schemas.EvalResult:
		if pipeline.EvalByHand(rec.Eval) {
			return // no part of the run
		}
		v.evals[evalKey{rec.Eval, rec.Version}] = rec
	case *schemas.StageState:
		if rec.Stage == "emitter" && len(rec.Core) > 0 && v.OpenGroups != nil {
			if groups, rollouts, err := v.OpenGroups(rec.Core); err == nil {
				v.openGroups, v.inFlight = groups, rollouts
			}
		}
	}
}

func (v *View) outcome(o *schemas.GroupOutcome) {
	v.outcomes++
	if o.Eval != "" {
		return
	}
	v.fates[o.Fate] += len(o.Rollouts)
	for _, r := range o.Rollouts {
		v.tokens += int64(r.Tokens)
	}
	if o.Step == nil {
		return
	}
	step := *o.Step
	if step > v.packedStep {
		v.packedStep, v.offPolicy, v.offMax = step, mean{}, 0
	}
	if v.steps[step] == nil {
		v.steps[step] = map[string]*mean{}
	}
	m := v.steps[step][o.Env]
	if m == nil {
		m = &mean{}
		v.steps[step][o.Env] = m
	}
	for _, r := range o.Rollouts {
		if r.Reward != nil {
			m.add(*r.Reward)
		}
		if r.PolicyStart != nil && step == v.packedStep {
			off := step - 1 - *r.PolicyStart
			v.offPolicy.add(float64(off))
			v.offMax = max(v.offMax, off)
		}
	}
}

// Final reports whether the trainer has published its last version, and which that is.
func (v *View) Final() (version int64, ok bool) {
	if v.policy == nil || !v.policy.Final {
		return 0, false
	}
	return v.policy.Version, true
}

// Waiting says what a run still waits for; empty where it has ended: the final version is out, every group has its
// outcome, and every eval of evals has measured the final version (versions are measured in order).
func (v *View) Waiting(evals []string) string {
	final, ok := v.Final()
	switch {
	case v.policy == nil:
		return "policy version 0, which the trainer makes"
	case v.packedStep == 0 && len(v.missing()) > 0:
		if v.Here {
			return fmt.Sprintf("%s to announce itself: its server starts here", strings.Join(v.missing(), ", "))
		}
		return MissingEnvs(v.missing())
	case v.packedStep == 0:
		return "the first rollouts"
	case !ok:
		return fmt.Sprintf("step %d", v.policy.Step+1)
	case v.openGroups > 0:
		return fmt.Sprintf("%d open groups", v.openGroups)
	}
	for _, e := range evals {
		if v.evals[evalKey{e, final}] == nil {
			return "eval " + e
		}
	}
	return ""
}

// missing are the environments that no server has announced.
func (v *View) missing() []string {
	return slices.DeleteFunc(slices.Clone(v.Envs), func(env string) bool { return v.announced[env] })
}

// Settled counts what has been decided: a number that grows as long as the run gets on.
func (v *View) Settled() int { return v.outcomes + len(v.evals) }

// Restart counts tokens from here on, for the rate.
func (v *View) Restart(now time.Time) { v.rate = rate{now, v.tokens} }

// rewards is the mean reward by environment over the last n packed steps.
func (v *View) rewards(n int64) map[string]float64 {
	sums := map[string]*mean{}
	for step := max(1, v.packedStep-n+1); step <= v.packedStep; step++ {
		for env, m := range v.steps[step] {
			if sums[env] == nil {
				sums[env] = &mean{}
			}
			sums[env].sum, sums[env].n = sums[env].sum+m.sum, sums[env].n+m.n
		}
	}
	out := map[string]float64{}
	for env, m := range sums {
		out[env] = m.value()
	}
	return out
}

func (v *View) evalNames() []string {
	names := map[string]bool{}
	for k := range v.evals {
		names[k.name] = true
	}
	return slices.Sorted(maps.Keys(names))
}

// newestEval is the eval's result of the highest version.
func (v *View) newestEval(name string) *schemas.EvalResult {
	var newest *schemas.EvalResult
	for k, e := range v.evals {
		if k.name == name && (newest == nil || e.Version > newest.Version) {
			newest = e
		}
	}
	return newest
}
