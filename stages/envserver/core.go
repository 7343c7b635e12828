package envserver

import (
	"fmt"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A core is what the server knows of one partition of tasks.<env>. Its methods are called by the shell; what it shares
// with the pool is under the pool's mutex.
type core struct {
	pool   *pool
	player *player

	inherited map[int64]entry // tasks that are to come again, by offset
	jobs      map[int64]*job
	order     []int64 // offsets of jobs, ascending
	fresh     []*job  // since the last tick
	listed    []*job  // granted, and in the state that State returned last
	ended     []*job  // whose traces are acknowledged
	dirty     bool    // a job was granted
	revoked   bool
}

var _ pipeline.AsyncCore = (*core)(nil)

// newCore restores a core. A task that the state lists as started ended without warning.
func newCore(p *pool, player *player, state []byte) (*core, error) {
	entries, err := decodeState(state)
	if err != nil {
		return nil, err
	}
	c := &core{pool: p, player: player, inherited: map[int64]entry{}, jobs: map[int64]*job{}}
	for _, e := range entries {
		c.inherited[e.offset] = e
	}
	return c, nil
}

// Process queues a task. An error is a task nobody can play.
func (c *core) Process(r pipeline.Record, _ *pipeline.Out) error {
	t, ok := r.Value.(*schemas.Task)
	if !ok {
		return fmt.Errorf("a %s is no task", r.Value.SchemaName())
	}
	plays := c.pool.plays(t)
	if plays {
		if err := playable(t, c.player.info.Name); err != nil {
			return err
		}
		if err := c.player.recordable(t); err != nil {
			return err
		}
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if c.jobs[r.Offset] != nil {
		return nil // it comes again, and runs already
	}
	before := c.inherited[r.Offset]
	j := &job{core: c, player: c.player, queue: c.pool.queue(c.player.info.Name), task: t, ref: r.Ref, from: r.Trace, crashes: before.crashes}
	if before.started {
		if j.crashes++; plays && j.crashes < len(c.pool.crashing) {
			c.pool.rerun(j, rerunCrashed)
		}
	}
	delete(c.inherited, r.Offset)
	c.jobs[r.Offset], c.order = j, append(c.order, r.Offset)
	if plays {
		c.fresh = append(c.fresh, j)
	}
	return nil
}

// What a task may ask for at most.
const (
	maxGroup       = 1 << 12
	maxTimeout     = 365 * 24 * time.Hour
	maxTemperature = 1e6
)

// playable checks what every environment and model asks of a task.
func playable(t *schemas.Task, env string) error {
	switch {
	case t.Env != env:
		return fmt.Errorf("a task of environment %q", t.Env)
	case t.Split != schemas.SplitTrain && t.Split != schemas.SplitEval:
		return fmt.Errorf("split %q is neither %s nor %s", t.Split, schemas.SplitTrain, schemas.SplitEval)
	case t.RolloutIndex < 0 && t.GroupSize > maxGroup:
		return fmt.Errorf("a group of %d rollouts: at most %d run as one task", t.GroupSize, maxGroup)
	case t.MaxTokens < 1 || t.MaxRolloutTokens < 1 || t.TimeoutMs < 1:
		return fmt.Errorf("max_tokens %d, max_rollout_tokens %d, timeout_ms %d: each at least 1", t.MaxTokens, t.MaxRolloutTokens, t.TimeoutMs)
	case t.TimeoutMs > maxTimeout.Milliseconds():
		return fmt.Errorf("timeout_ms %d: at most %d", t.TimeoutMs, maxTimeout.Milliseconds())
	case !(t.Temperature >= 0 && t.Temperature <= maxTemperature) || !(t.TopP > 0 && t.TopP <= 1):
		return fmt.Errorf("temperature %v, top_p %v", t.Temperature, t.TopP)
	case t.Eval == "" && (t.Temperature == 0 || t.TopP != 1):
		return fmt.Errorf("temperature %v, top_p %v: what is trained on is sampled at a temperature above 0 and a top_p of 1", t.Temperature, t.TopP)
	}
	return nil
}

// Tick lets the oldest tasks start with the next committed state, and finishes those whose traces are acknowledged.
func (c *core) Tick(now time.Time, out *pipeline.Out) error {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue(c.player.info.Name).moves(now)
	for _, j := range c.fresh {
		p.add(j)
	}
	c.fresh = nil
	p.grant()
	if c.dirty {
		out.Touch()
	}
	c.dirty = false
	for _, j := range c.ended {
		out.Finish(j.ref)
		delete(c.jobs, j.ref.Offset)
		p.rest()
	}
	c.ended = nil
	return nil
}

// State lists the tasks that may run from its commit on, and the crashes of all.
func (c *core) State() ([]byte, error) {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	var entries []entry
	order := c.order[:0]
	c.listed = nil
	for _, offset := range c.order {
		j := c.jobs[offset]
		if j == nil {
			continue
		}
		order = append(order, offset)
		started := !c.revoked && (j.phase == granted || j.phase == running)
		if started || j.crashes > 0 {
			entries = append(entries, entry{offset, started, j.crashes})
		}
		if started && j.phase == granted {
			c.listed = append(c.listed, j)
		}
	}
	c.order = order
	return encodeState(entries), nil
}

// Committed starts what the state lists.
func (c *core) Committed() {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range c.listed {
		if j.phase == granted && !p.stopping {
			p.launch(j)
		}
	}
	c.listed = nil
}

// Revoking gives up what has not begun. What runs, runs to its end and writes its traces.
func (c *core) Revoking() {
	p := c.pool
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, j := range c.jobs {
		switch j.phase {
		case granted:
			p.release(j)
			fallthrough
		case waiting:
			j.phase = dropped
			p.forget(j)
		case running:
			p.rerun(j, rerunMoved)
		case done:
			p.rest()
		}
		j.core = nil
	}
	c.revoked, c.fresh, c.ended, c.listed = true, nil, nil, nil
}
