package envserver

import (
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/idset"
)

// policy tells of a new policy version: tasks that can no longer meet their bound on off-policy steps are cancelled (I3).
func (p *pool) policy(version int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.newest = max(p.newest, version)
	for j := range p.jobs {
		p.checkStale(j)
	}
}

// version is the newest policy version that is known.
func (p *pool) version() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.newest
}

// sampled tells of the lowest policy version among a rollout's tokens.
func (p *pool) sampled(j *job, version int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if j.start < 0 || version < j.start {
		j.start = version
	}
	p.checkStale(j)
}

// checkStale cancels a job of which every sample would be stale: the next step to be cut is at least newest + 1. A frozen
// policy is never stale.
func (p *pool) checkStale(j *job) {
	bound := int64(j.task.MaxOffPolicySteps)
	if j.phase == running && j.task.Policy == "" && bound >= 0 && j.start >= 0 && p.newest-j.start > bound {
		j.cancel(errStale)
	}
}

// outcome tells of a decided group: what belongs to it does not start, and ends where it runs.
func (p *pool) outcome(o *schemas.GroupOutcome) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopping {
		return
	}
	set := p.decided[o.Eval]
	if set == nil {
		set = &idset.Set{}
		p.decided[o.Eval] = set
	}
	if !set.Add(o.GroupID) {
		return
	}
	for _, j := range p.groups[groupKey{o.Eval, o.GroupID}] {
		switch j.phase {
		case running:
			j.cancel(errDecided)
		case waiting:
			p.conclude(j, errDecided)
		}
	}
}

// isDecided reports whether the outcome of a task's group is known, under the mutex.
func (p *pool) isDecided(t *schemas.Task) bool {
	set := p.decided[t.Eval]
	return set != nil && set.Has(t.GroupID)
}
