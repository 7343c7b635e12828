// Package schedule holds what the two stages that write tasks (emitter and eval) share: where a task goes (Queues), its
// seeds (GroupSeed, RolloutSeed), the time that has passed while they ran (Clock), and the traces of rollouts they end
// themselves (Ended).
//
// Nothing here reads a clock or an unseeded random number: the same calls give the same answers.
package schedule

import (
	"time"

	"github.com/prl-project/prl/schemas"
)

// maxGap is the longest time between two ticks that counts as time in which the stage ran.
const maxGap = time.Second

// Clock counts the milliseconds in which a stage ran: the gaps between its ticks, each of them at most a second, so that
// the time in which it was down ends nobody's deadline. Both fields belong to the stage's state.
type Clock struct {
	Ran  int64 `json:"ran"`  // milliseconds
	Last int64 `json:"last"` // the newest tick, in milliseconds since 1970 UTC; 0 before the first
}

// Advance takes a tick. A clock that was set back does not count.
func (c *Clock) Advance(now time.Time) {
	ms := now.UnixMilli()
	if c.Last != 0 && ms > c.Last {
		c.Ran += min(ms-c.Last, maxGap.Milliseconds())
	}
	c.Last = ms
}

// Ended is the trace of a rollout that a stage ended itself: an error of the given type, and nothing else.
func Ended(task *schemas.Task, index, attempt int, envVersion, stage, errorType, message string) *schemas.Trace {
	return &schemas.Trace{
		Env: task.Env, EnvVersion: envVersion, Eval: task.Eval, GroupID: task.GroupID, GroupSize: task.GroupSize,
		RolloutIndex: index, Attempt: attempt, Split: task.Split, TaskIndex: task.TaskIndex, Task: task.Task,
		GroupSeed: task.GroupSeed, Seed: RolloutSeed(task.GroupSeed, index), PinVersion: task.PinVersion,
		Step: task.Step, Wave: task.Wave, WaveFirst: task.WaveFirst, WaveLast: task.WaveLast,
		Errors:   []schemas.TraceError{{Type: errorType, Message: message}},
		Instance: stage, Policy: task.Policy,
	}
}
