package eval

import (
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/schedule"
)

// round is one eval of one version. Its exported fields are in State; the others are made again from unfinished traces.
type round struct {
	Env      string  `json:"env"`
	Version  int64   `json:"version"`
	First    int64   `json:"first"` // its first group
	Examples int     `json:"examples"`
	K        int     `json:"k"`
	Emitted  []batch `json:"emitted"`
	Expired  int     `json:"expired"` // examples, in order, whose deadline has passed

	examples []example // those emitted
	decided  int
	refs     []pipeline.Ref // unfinished traces
}

// batch is examples that were emitted in one tick.
type batch struct {
	Born  int64 `json:"born"` // clock.Ran then
	Count int   `json:"count"`
}

func (e *eval) start(version int64) {
	e.run = &round{Env: e.cfg.Env, Version: version, First: e.ids, Examples: e.cfg.Examples, K: e.cfg.K}
}

// emit writes the tasks of as many examples as there are permits for.
func (c *Core) emit(e *eval, out *pipeline.Out) {
	r, count := e.run, 0
	for len(r.examples) < r.Examples && (len(r.examples)-r.decided+1)*r.K <= e.cfg.Permits {
		t := c.task(e, len(r.examples))
		r.examples = append(r.examples, example{})
		e.ids++
		count++
		first, last := 0, r.K-1
		if e.env.Info.GroupScoring {
			first, last = -1, -1
		}
		for i := first; i <= last; i++ {
			rollout := t
			rollout.RolloutIndex, rollout.Seed = i, schedule.RolloutSeed(t.GroupSeed, i)
			out.EmitTo(pipeline.TopicTasks(t.Env), e.env.Queues.Next(), &rollout)
		}
	}
	if count > 0 {
		r.Emitted = append(r.Emitted, batch{c.clock.Ran, count})
	}
}

// task is what the tasks of an example have in common.
func (c *Core) task(e *eval, i int) schemas.Task {
	maxTokens, maxRolloutTokens := c.envs[e.cfg.Env].Limits(c.run)
	pin := e.run.Version
	return schemas.Task{
		Env: e.cfg.Env, Eval: e.name, GroupID: e.run.First + int64(i), GroupSize: e.run.K,
		Split: schemas.SplitEval, TaskIndex: int64(i) % e.env.Info.EvalTasks,
		GroupSeed: schedule.GroupSeed(c.run.Seed, e.name, int64(i)), PinVersion: &pin,
		Temperature: e.cfg.Temperature, TopP: 1, MaxTokens: maxTokens, MaxRolloutTokens: maxRolloutTokens,
		TimeoutMs: e.cfg.Timeout.Milliseconds(), MaxOffPolicySteps: -1,
	}
}

// expire writes, once, an errored trace for each rollout of the examples whose deadline has passed; they are decided
// when these traces come back.
func (c *Core) expire(e *eval, out *pipeline.Out) {
	r, end := e.run, 0
	for _, b := range r.Emitted {
		if c.clock.Ran-b.Born <= e.cfg.GroupTimeout.Milliseconds() {
			break
		}
		end += b.Count
	}
	for i := r.Expired; i < end; i++ {
		if r.examples[i].decided {
			continue
		}
		t := c.task(e, i)
		for index := range r.K {
			out.Emit(pipeline.TopicEvalTraces, schedule.Ended(&t, index, 0, e.env.Info.Version, stage, schemas.ErrorTimedOut,
				"the example was open for more than "+e.cfg.GroupTimeout.String()))
		}
	}
	r.Expired = max(r.Expired, end)
}

// take notes a trace of the round; it decides the example when it was the last one missing, and the round when this was
// the last example.
func (e *eval) take(ref pipeline.Ref, t *schemas.Trace, out *pipeline.Out) error {
	r := e.run
	x := &r.examples[t.GroupID-r.First]
	if err := r.accepts(t); err != nil {
		return err
	}
	if !x.add(t, r.K) {
		out.Finish(ref)
		return nil
	}
	r.refs = append(r.refs, ref)
	rollouts := x.complete()
	if rollouts == nil {
		return nil
	}
	x.decide(rollouts)
	r.decided++
	out.Emit(pipeline.TopicOutcomes, outcome(t, rollouts))
	if r.decided < r.Examples {
		return nil
	}
	out.Emit(pipeline.TopicEvals, e.result())
	for _, ref := range r.refs {
		out.Finish(ref)
	}
	e.run = nil
	return nil
}

// result makes the figures, in the order of examples and rollouts.
func (e *eval) result() *schemas.EvalResult {
	f := newFigures(e.run.K, e.cfg.PassThreshold)
	for _, x := range e.run.examples {
		f.add(x.rollouts)
	}
	res := &schemas.EvalResult{Eval: e.name, Env: e.cfg.Env, Version: e.run.Version, Examples: int64(e.run.Examples), K: e.run.K}
	f.write(res)
	if e.env.Info != nil {
		res.Baselines = e.env.Info.Baselines
	}
	return res
}

// outcome is the fate of an example; t is any of its traces.
func outcome(t *schemas.Trace, rollouts []*rollout) *schemas.GroupOutcome {
	o := &schemas.GroupOutcome{Env: t.Env, Eval: t.Eval, GroupID: t.GroupID, TaskIndex: t.TaskIndex, Fate: rollouts[0].fate.Fate}
	for _, r := range rollouts {
		o.Rollouts = append(o.Rollouts, r.fate)
	}
	if slices.ContainsFunc(rollouts, func(r *rollout) bool { return r.ok() }) {
		o.Fate = schemas.FateEvaluated
	}
	return o
}
