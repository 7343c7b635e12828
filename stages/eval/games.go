package eval

import (
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/schedule"
)

// A Game is a task as it was played in a recorded run, of training or of an eval.
type Game struct {
	Split     string
	TaskIndex int64
	// GroupSeed is that of the environment.
	GroupSeed int64
}

// game is what example i of the running round plays: a recorded game, or a held-out task.
func (c *Core) game(e *eval, i int) Game {
	if e.games != nil {
		return e.games[i]
	}
	return Game{Split: schemas.SplitEval, TaskIndex: (e.run.Task + int64(i)) % e.env.Info.EvalTasks, GroupSeed: c.groupSeed(e, i)}
}

func (c *Core) groupSeed(e *eval, i int) int64 {
	if e.games != nil {
		return e.games[i].GroupSeed
	}
	return schedule.GroupSeed(c.run.Seed, e.seeds, int64(i))
}
