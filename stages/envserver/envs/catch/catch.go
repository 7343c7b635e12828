// Package catch is the environment "catch": a ball falls, one row a turn, and a paddle at the bottom has to be under it.
//
// The ball starts in the top row, ball and paddle each in some column. Every turn the policy sees where both are and says l, s
// or r (left, stay, right); the paddle moves, stopping at the walls, and the ball falls one row. The episode ends when the ball
// is in the bottom row: reward "caught" is 1 if the paddle is there, too, else 0. Anything but the three letters counts as stay
// and is counted in the metric "invalid_moves". Every start can be caught, since there are at least as many rows as columns.
//
// Compact prompt: a turn's message is three numbers without anything between, ball column, ball row and paddle column, counted
// from 0 at the top left; "102" on the default grid. Each has as many digits as the largest column or row needs, with leading
// zeros: on a grid of more than ten rows "010002". Full prompt: the rules as system message, and sentences.
//
// Tasks and what an eval measures: a task is a start, (ball column, paddle column), and there are only columns² of them: nine on
// the default grid. So by default nothing is held out: both splits go round all starts, in a fixed shuffled order, and an eval
// is an exact account of how many starts the policy catches, not of whether it generalises. With hold_out = n, n of the starts
// are for the eval only, and the splits are disjoint; what follows after the first move has still been seen in training. The
// seed plays no part: an episode depends on task and replies alone.
//
// Demonstration: what the policy sees and what an expert answers, turn by turn; "200 r 211 r 222 s" in compact prompts.
package catch

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of catch.
type Config struct {
	Columns int `toml:"columns" json:"columns"` // 2 to 32; default 3
	Rows    int `toml:"rows" json:"rows"`       // columns to 100; default 4
	// TrainTasks and EvalTasks are the sizes of the splits; a split that is larger than its starts repeats them. Default 1024
	// and 512.
	TrainTasks int `toml:"train_tasks" json:"train_tasks"`
	EvalTasks  int `toml:"eval_tasks" json:"eval_tasks"`
	// HoldOut is the number of starts that are kept for the eval split, below columns²; default 0, where both splits have all.
	HoldOut int `toml:"hold_out" json:"hold_out"`
	// Prompt is "compact" (default) or "full".
	Prompt string `toml:"prompt" json:"prompt"`
}

// Defaults is the configuration of a grid of three columns and four rows.
func Defaults() Config {
	return Config{Columns: 3, Rows: 4, TrainTasks: 1024, EvalTasks: 512, Prompt: "compact"}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if c.Columns < 2 || c.Columns > 32 {
		errs = append(errs, fmt.Errorf("columns = %d: want 2 to 32", c.Columns))
	}
	if c.Rows < c.Columns || c.Rows > 100 {
		errs = append(errs, fmt.Errorf("rows = %d: want columns (%d) to 100, so that every start can be caught", c.Rows, c.Columns))
	}
	errs = append(errs, env.CheckTasks(c.TrainTasks, c.EvalTasks))
	if c.HoldOut < 0 || c.HoldOut >= c.Columns*c.Columns {
		errs = append(errs, fmt.Errorf("hold_out = %d: want 0 to %d, since there are columns² starts", c.HoldOut, c.Columns*c.Columns-1))
	}
	errs = append(errs, env.CheckPrompt(c.Prompt))
	return errors.Join(errs...)
}

// Catch is the environment.
type Catch struct {
	cfg    Config
	starts map[env.Split][]start
}

// start is a task.
type start struct {
	Ball   int `json:"ball"`   // column
	Paddle int `json:"paddle"` // column
}

// New makes the environment of a configuration; an error if that is not valid.
func New(cfg Config) (*Catch, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	var all []start
	for b := range cfg.Columns {
		for p := range cfg.Columns {
			all = append(all, start{b, p})
		}
	}
	slices.SortFunc(all, func(a, b start) int { return cmp.Compare(a.hash(), b.hash()) })
	c := &Catch{cfg: cfg, starts: map[env.Split][]start{env.Train: all, env.Eval: all}}
	if cfg.HoldOut > 0 {
		c.starts[env.Eval], c.starts[env.Train] = all[:cfg.HoldOut], all[cfg.HoldOut:]
	}
	return c, nil
}

// hash orders the starts in a fixed way that is as good as shuffled.
func (s start) hash() uint64 { return env.Hash(fmt.Sprintf("%d,%d", s.Ball, s.Paddle)) }

// Info implements [env.Environment].
func (c *Catch) Info() env.Info {
	return env.Info{
		Name: "catch", Version: "1", Train: c.cfg.TrainTasks, Eval: c.cfg.EvalTasks, Disjoint: c.cfg.HoldOut > 0,
		MaxTurns: c.cfg.Rows - 1, CutReplies: true,
	}
}

// Task implements [env.Environment]: {"ball": column, "paddle": column}.
func (c *Catch) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(c.Info(), split, index); err != nil {
		return nil, err
	}
	starts := c.starts[split]
	return json.Marshal(starts[index%len(starts)])
}

// Start implements [env.Environment].
func (c *Catch) Start(_ context.Context, task json.RawMessage, _ int64) (env.Episode, error) {
	return c.game(task)
}

// Rescore implements [env.Rescorer].
func (c *Catch) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, c, task, seed, messages, ended)
}

// Demonstrate implements [env.Demonstrator].
func (c *Catch) Demonstrate(task json.RawMessage, _ int64) (string, error) {
	g, err := c.game(task)
	if err != nil {
		return "", err
	}
	var turns []string
	for g.row < g.cfg.Rows-1 {
		move := []string{"l", "s", "r"}[1+cmp.Compare(g.start.Ball, g.paddle)]
		turns = append(turns, g.observe().Content+" "+move)
		g.move(move)
	}
	return strings.Join(turns, " "), nil
}

func (c *Catch) game(task json.RawMessage) (*game, error) {
	g := &game{cfg: c.cfg}
	if err := json.Unmarshal(task, &g.start); err != nil {
		return nil, fmt.Errorf("decode task: %w", err)
	}
	for _, column := range []int{g.start.Ball, g.start.Paddle} {
		if column < 0 || column >= c.cfg.Columns {
			return nil, fmt.Errorf("task %s: column %d of a grid of %d", task, column, c.cfg.Columns)
		}
	}
	g.paddle = g.start.Paddle
	return g, nil
}
