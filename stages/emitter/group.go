package emitter

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/schedule"
)

// group is a group without an outcome.
type group struct {
	id        int64
	env       *environment
	size      int
	taskIndex int64
	version   int64 // newest policy version at its emission
	born      int64 // clock.Ran at its emission
	whole     bool  // one task asks for all its rollouts
	ended     bool  // its rollouts' errored traces are written
	attempts  []attempt
}

// attempt is the newest refill of a rollout; index -1 is the whole group's.
type attempt struct{ index, number int }

func (g *group) attempt(index int) int {
	for _, a := range g.attempts {
		if a.index == index {
			return a.number
		}
	}
	return 0
}

// begin opens a group of env with the next id.
func (c *Core) begin(env *environment) *group {
	g := &group{
		id: c.nextID, env: env, size: env.cfg.GroupSize, taskIndex: env.curriculum.next(env.Info.TrainTasks),
		version: c.version, born: c.clock.Ran, whole: env.Info.GroupScoring,
	}
	c.nextID++
	c.add(g)
	return g
}

// add takes a group with an id above all open ones.
func (c *Core) add(g *group) {
	c.open = append(c.open, g)
	c.held += g.size
	g.env.held += g.size
}

func (c *Core) find(id int64) (int, bool) {
	return slices.BinarySearchFunc(c.open, id, func(g *group, id int64) int { return cmp.Compare(g.id, id) })
}

// learn tells the mix and the environment's curriculum how an open group did, if it was scored. A group that failed as
// a whole says nothing of its task.
func (c *Core) learn(o *schemas.GroupOutcome) {
	i, ok := c.find(o.GroupID)
	switch o.Fate {
	case schemas.FatePacked, schemas.FateFiltered, schemas.FateStale, schemas.FateOverlong:
	default:
		ok = false
	}
	if !ok {
		return
	}
	g, result := c.open[i], Result{}
	for _, r := range o.Rollouts {
		result.Tokens += int64(max(0, r.Tokens))
		if r.Reward != nil && math.Abs(*r.Reward) <= maxReward { // not NaN either
			result.Rewards = append(result.Rewards, *r.Reward)
		}
	}
	g.env.curriculum.learn(g.taskIndex, result.Rewards)
	c.mix.Learn(g.env.Name, result)
}

// maxReward is the largest reward that is learnt from, so that no sum of them is infinite.
const maxReward = 1e100

// close gives a group's permits back; a group that is not open has none.
func (c *Core) close(id int64) {
	if i, ok := c.find(id); ok {
		c.held -= c.open[i].size
		c.open[i].env.held -= c.open[i].size
		c.open = slices.Delete(c.open, i, i+1)
	}
}

// task is what all tasks of a group have in common.
func (c *Core) task(g *group) schemas.Task {
	maxTokens, maxRolloutTokens := g.env.cfg.Limits(c.run)
	t := schemas.Task{
		Env: g.env.Name, GroupID: g.id, GroupSize: g.size, Split: schemas.SplitTrain, TaskIndex: g.taskIndex,
		GroupSeed:   schedule.GroupSeed(c.run.Seed, "", g.id),
		Temperature: g.env.cfg.Temperature, TopP: g.env.cfg.TopP, MaxTokens: maxTokens, MaxRolloutTokens: maxRolloutTokens,
		TimeoutMs: g.env.cfg.Timeout.Milliseconds(), MaxOffPolicySteps: c.run.MaxOffPolicySteps, Policy: g.env.cfg.Policy,
	}
	if g.env.cfg.Frozen() {
		t.MaxOffPolicySteps = -1 // it has no versions to fall behind
	}
	c.waves.mark(&t)
	return t
}

// write emits the tasks of a new group.
func (c *Core) write(g *group, out *pipeline.Out) {
	if g.whole {
		c.writeRollout(g, -1, 0, out)
		return
	}
	for i := range g.size {
		c.writeRollout(g, i, 0, out)
	}
}

func (c *Core) writeRollout(g *group, index, attempt int, out *pipeline.Out) {
	t := c.task(g)
	t.RolloutIndex, t.Attempt, t.Seed = index, attempt, schedule.RolloutSeed(t.GroupSeed, index)
	out.EmitTo(pipeline.TopicTasks(t.Env), g.env.Queues.Next(), &t)
}

// refill emits a rollout again, if its group is open, nothing has ended it here, and the attempt is new. One that is above
// max_attempts it ends instead: whoever asked for it, with another setting, waits for it.
func (c *Core) refill(r *schemas.Request, out *pipeline.Out) {
	i, ok := c.find(r.GroupID)
	if !ok {
		return
	}
	g := c.open[i]
	named := r.RolloutIndex >= 0 && r.RolloutIndex < g.size && !g.whole || r.RolloutIndex == -1 && g.whole
	if g.ended || !named || r.Attempt <= g.attempt(r.RolloutIndex) {
		return
	}
	if r.Attempt > c.cfg.MaxAttempts {
		c.refuse(g, r, out)
		return
	}
	g.attempts = slices.DeleteFunc(g.attempts, func(a attempt) bool { return a.index == r.RolloutIndex })
	g.attempts = append(g.attempts, attempt{r.RolloutIndex, r.Attempt})
	c.writeRollout(g, r.RolloutIndex, r.Attempt, out)
}

// refuse writes an errored trace for each rollout of an attempt that is not made. Where all rollouts of a group are asked
// for at once, they are a run of their own, as those of any other attempt are.
func (c *Core) refuse(g *group, r *schemas.Request, out *pipeline.Out) {
	from, to, run := r.RolloutIndex, r.RolloutIndex+1, ""
	if g.whole {
		from, to, run = 0, g.size, stage
	}
	message := fmt.Sprintf("no more attempts: emitter.max_attempts = %d", c.cfg.MaxAttempts)
	t, version := c.task(g), g.envVersion()
	for i := from; i < to; i++ {
		trace := schedule.Ended(&t, i, r.Attempt, version, stage, "attempts", message)
		trace.GroupRun = run
		out.Emit(pipeline.TopicTraces, trace)
	}
}

// envVersion is the version of the environment's server; empty while none has been heard of.
func (g *group) envVersion() string {
	if g.env.Info == nil {
		return ""
	}
	return g.env.Info.Version
}

// expire ends the groups that have been open for too long.
func (c *Core) expire(out *pipeline.Out) {
	for _, g := range c.open {
		if limit := g.env.cfg.GroupTimeout; !g.ended && c.clock.Ran-g.born > limit.Milliseconds() {
			c.end(g, schemas.ErrorTimedOut, "the group was open for more than "+limit.String(), out)
		}
	}
}

// cancel ends all open groups.
func (c *Core) cancel(out *pipeline.Out) {
	for _, g := range c.open {
		if !g.ended {
			c.end(g, schemas.ErrorCancelled, "the run has ended", out)
		}
	}
}

// end writes an errored trace for each of a group's rollouts, once. The group stays open until its outcome comes.
func (c *Core) end(g *group, errorType, message string, out *pipeline.Out) {
	g.ended = true
	t, version := c.task(g), g.envVersion()
	for i := range g.size {
		number := g.attempt(i)
		if g.whole {
			number = g.attempt(-1)
		}
		out.Emit(pipeline.TopicTraces, schedule.Ended(&t, i, number, version, stage, errorType, message))
	}
}
