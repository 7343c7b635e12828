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
	First    int64   `json:"first"`      // its first group
	Task     int64   `json:"first_task"` // held-out task of its first example
	Examples int     `json:"examples"`
	K        int     `json:"k"`
	Emitted  []batch `json:"emitted"`
	Expired  int     `json:"expired"` // examples, in the order they are played, whose deadline has passed

	policy   string         // frozen policy that plays; empty for the version
	examples []example      // all of them
	order    []int          // the examples that are played, where not all are
	emitted  int            // of those played
	decided  int            // of those played
	open     int            // emitted and not decided
	refs     []pipeline.Ref // unfinished traces
}

// batch is examples that were emitted in one tick.
type batch struct {
	Born  int64 `json:"born"` // clock.Ran then
	Count int   `json:"count"`
}

// plays is the number of examples that are played.
func (r *round) plays() int {
	if r.order != nil {
		return len(r.order)
	}
	return r.Examples
}

// at is the n-th example that is played.
func (r *round) at(n int) int {
	if r.order != nil {
		return r.order[n]
	}
	return n
}

func (e *eval) start(version int64) {
	e.run = &round{
		Env: e.cfg.Env, Version: version, First: e.ids, Task: e.cfg.First, Examples: e.cfg.Examples, K: e.cfg.K,
		policy: e.policy, examples: make([]example, e.cfg.Examples),
	}
}

// emit writes the tasks of as many examples as there are permits for.
func (c *Core) emit(e *eval, out *pipeline.Out) {
	r, before := e.run, e.run.emitted
	for r.emitted < r.plays() && (r.open+1)*r.K <= e.cfg.Permits {
		i := r.at(r.emitted)
		t := c.task(e, i)
		for _, a := range r.examples[i].asks(r.K, e.env.Info.GroupScoring) {
			rollout := t
			rollout.RolloutIndex, rollout.Attempt, rollout.Seed = a.index, a.attempt, schedule.RolloutSeed(t.GroupSeed, a.index)
			out.EmitTo(pipeline.TopicTasks(t.Env), e.env.Queues.Next(), &rollout)
		}
		r.emitted++
		if x := &r.examples[i]; !x.decided { // it may have come late, before it was asked for again
			x.emitted = true
			r.open++
		}
		e.ids = max(e.ids, t.GroupID+1)
	}
	if n := r.emitted - before; n > 0 {
		r.Emitted = append(r.Emitted, batch{c.clock.Ran, n})
	}
}

// task is what the tasks of an example have in common.
func (c *Core) task(e *eval, i int) schemas.Task {
	maxTokens, maxRolloutTokens := e.cfg.limits(c.run, c.envs[e.cfg.Env])
	g := c.game(e, i)
	t := schemas.Task{
		Env: e.cfg.Env, Eval: e.name, GroupID: e.run.First + int64(i), GroupSize: e.run.K,
		Split: g.Split, TaskIndex: g.TaskIndex, GroupSeed: g.GroupSeed, Policy: e.policy,
		Temperature: e.cfg.Temperature, TopP: 1, MaxTokens: maxTokens, MaxRolloutTokens: maxRolloutTokens,
		TimeoutMs: e.cfg.Timeout.Milliseconds(), MaxOffPolicySteps: -1,
	}
	if e.policy == "" {
		pin := e.run.Version
		t.PinVersion = &pin
	}
	return t
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
	for n := r.Expired; n < end; n++ {
		i := r.at(n)
		x := &r.examples[i]
		if x.decided {
			continue
		}
		t := c.task(e, i)
		for index := range r.K {
			out.Emit(pipeline.TopicEvalTraces, schedule.Ended(&t, index, x.attempt(index), e.env.Info.Version, stage,
				schemas.ErrorTimedOut, "the example was open for more than "+e.cfg.GroupTimeout.String()))
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
	if !x.add(t, tokens(t.Nodes), r.K) {
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
	if x.emitted {
		r.open--
	}
	if !e.byHand || !failedSome(rollouts) {
		out.Emit(pipeline.TopicOutcomes, outcome(t, rollouts))
	}
	if r.decided < r.plays() {
		return nil
	}
	out.Emit(pipeline.TopicEvals, e.result(r))
	for _, ref := range r.refs {
		out.Finish(ref)
	}
	e.run = nil
	return nil
}

// result makes the figures of what is decided, in the order of examples and rollouts.
func (e *eval) result(r *round) *schemas.EvalResult {
	f := newFigures(r.K, e.cfg.PassThreshold)
	for _, x := range r.examples {
		f.add(x.task, x.rollouts)
	}
	res := &schemas.EvalResult{
		Eval: e.name, Env: e.cfg.Env, Version: r.Version, Policy: r.policy, Examples: int64(r.Examples), K: r.K,
	}
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
	if slices.ContainsFunc(rollouts, (*rollout).ok) {
		o.Fate = schemas.FateEvaluated
	}
	return o
}

func failedSome(rollouts []*rollout) bool {
	return slices.ContainsFunc(rollouts, func(r *rollout) bool { return !r.ok() })
}
