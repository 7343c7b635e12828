package pipelinetest

import (
	"context"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Audit is what the topics of a run hold, and what is wrong with them.
type Audit struct {
	Groups, Rollouts, Traces, Packed int
	Versions                         int64
	Violations                       []string
}

// maxViolations bounds how many are told one by one.
const maxViolations = 50

func (r *Audit) violate(format string, args ...any) {
	if len(r.Violations) < maxViolations {
		r.Violations = append(r.Violations, fmt.Sprintf(format, args...))
	}
}

// group is what the topics say of one group.
type group struct {
	env      string
	size     int
	scored   int
	outcomes []*schemas.GroupOutcome
	packed   map[rolloutBranch]int64 // step by sample
	good     map[int]bool            // rollouts with a trace without error
}

type groupKey struct {
	eval string
	id   int64
}

type rolloutBranch struct{ rollout, branch int }

// AuditRun reads every topic of the run of rt, whose environments are envs, and checks the invariants that can be seen
// there: I1 (one outcome), I2 (trained at most once, and none lost), I3 (staleness bound), and that policy versions are
// one unbroken row. With ended every group must have its outcome.
func AuditRun(ctx context.Context, rt *pipeline.Runtime, envs []string, ended bool) (*Audit, error) {
	topics := []string{pipeline.TopicTraces, pipeline.TopicEvalTraces, pipeline.TopicSamples, pipeline.TopicOutcomes, pipeline.TopicBatches, pipeline.TopicPolicies}
	for _, e := range envs {
		topics = append(topics, pipeline.TopicTasks(e))
	}
	f, err := rt.Follow(topics...)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	recs, err := f.Load(ctx)
	if err != nil {
		return nil, fmt.Errorf("audit: %w", err)
	}
	a := auditor{run: rt.Run, groups: map[groupKey]*group{}}
	for _, r := range recs {
		a.read(r)
	}
	a.check(ended)
	return &a.report, nil
}

type auditor struct {
	run    pipeline.RunConfig
	groups map[groupKey]*group
	report Audit
}

func (a *auditor) group(eval string, id int64) *group {
	k := groupKey{eval, id}
	g := a.groups[k]
	if g == nil {
		g = &group{packed: map[rolloutBranch]int64{}, good: map[int]bool{}}
		a.groups[k] = g
	}
	return g
}

func (a *auditor) read(r pipeline.Record) {
	switch rec := r.Value.(type) {
	case *schemas.Task:
		g := a.group(rec.Eval, rec.GroupID)
		g.env, g.size = rec.Env, rec.GroupSize
	case *schemas.Trace:
		a.report.Traces++
		if len(rec.Errors) == 0 {
			a.group(rec.Eval, rec.GroupID).good[rec.RolloutIndex] = true
		}
	case *schemas.SampleGroup:
		a.group("", rec.GroupID).scored++
	case *schemas.GroupOutcome:
		g := a.group(rec.Eval, rec.GroupID)
		g.outcomes = append(g.outcomes, rec)
	case *schemas.MicroBatch:
		a.batch(rec)
	case *schemas.PolicyVersion:
		if rec.Version != a.report.Versions {
			a.report.violate("I2: policy version %d comes after %d", rec.Version, a.report.Versions-1)
		}
		a.report.Versions = rec.Version + 1
	}
}

func (a *auditor) batch(b *schemas.MicroBatch) {
	for _, s := range b.Samples {
		g, key := a.group("", s.GroupID), rolloutBranch{s.RolloutIndex, s.Branch}
		if step, twice := g.packed[key]; twice {
			a.report.violate("I2: group %d rollout %d branch %d is in step %d and in step %d", s.GroupID, s.RolloutIndex, s.Branch, step, b.Step)
		}
		g.packed[key] = b.Step
		if s.PolicyStart != nil {
			if off := b.Step - 1 - *s.PolicyStart; off < 0 || off > int64(a.run.MaxOffPolicySteps) {
				a.report.violate("I3: group %d rollout %d is %d off-policy steps old in step %d", s.GroupID, s.RolloutIndex, off, b.Step)
			}
		}
	}
}

func (a *auditor) check(ended bool) {
	for key, g := range a.groups {
		a.report.Groups++
		a.report.Rollouts += g.size
		name := fmt.Sprintf("group %s%d", prefix(key.eval), key.id)
		switch n := len(g.outcomes); {
		case g.size == 0:
			a.report.violate("I1: %s has records but no task", name)
		case n > 1:
			a.report.violate("I1: %s has %d outcomes", name, n)
		case n == 0 && ended:
			a.report.violate("I1: %s of %s has no outcome (%d of %d rollouts came)", name, g.env, len(g.good), g.size)
		}
		if key.eval == "" && g.scored > 1 {
			a.report.violate("I1: %s was scored %d times", name, g.scored)
		}
		for _, o := range g.outcomes {
			a.outcome(name, g, o)
		}
	}
}

// outcome holds what a group's outcome says against the batches and traces.
func (a *auditor) outcome(name string, g *group, o *schemas.GroupOutcome) {
	if len(o.Rollouts) != g.size {
		a.report.violate("I2: the outcome of %s (%s) speaks of %d of %d rollouts", name, o.Fate, len(o.Rollouts), g.size)
	}
	if o.Fate != schemas.FatePacked {
		if len(g.packed) > 0 {
			a.report.violate("I2: %s is %s and yet in a batch", name, o.Fate)
		}
		return
	}
	a.report.Packed++
	if len(g.packed) == 0 {
		a.report.violate("I2: %s is packed and in no batch", name)
	}
	for key, step := range g.packed {
		if o.Step == nil || *o.Step != step {
			a.report.violate("I2: rollout %d of %s is in step %d, its outcome says otherwise", key.rollout, name, step)
		}
	}
}

func prefix(eval string) string {
	if eval == "" {
		return ""
	}
	return eval + "/"
}
