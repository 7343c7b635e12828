// Package sudoku is the environment "sudoku": fill a grid of 4 × 4 or 9 × 9 cells so that every row, column and box has each digit
// once.
//
// It exercises long conversations with a state that the policy must read off its messages, and search: what was tried and was wrong
// stands in every message that follows. Every puzzle has exactly one solution.
//
// Difficulty is what solving takes, not the number of digits that are given: "easy" puzzles yield to naked singles (a cell with one
// candidate left), "medium" ones also need hidden singles (a digit with one cell left in a row, column or box), "hard" ones also
// eliminations (locked candidates, naked and hidden pairs), "expert" ones more than all these. No technique below a puzzle's level
// solves it. Grids of 4 × 4 are all easy: naked singles suffice there. empty = n makes short games, with only n cells to fill; by default
// as many are empty as the level allows, some 12 of 16 and 56 of 81.
//
// mode = "move": a reply is one move. A right digit stays; a wrong one, a cell that has its digit and anything else is a mistake.
// mode = "grid": a reply is a whole grid, in which cells may be left open. What is right stays, what is wrong was tried; every reply but
// the solution is a mistake. The game is lost at the given number of mistakes. With hints = true the message after a mistake names a
// cell that the easiest technique fills next, and the technique.
//
// Compact prompt: a message is the grid, row by row without anything between, with . for an open cell ("1..4341...4.4..1"), then
// for each wrong digit that was tried " x" with row, column and digit, and for a hint " ?" with row and column. A move is row, column
// and digit ("123"), a grid is as many characters as the message has. Full prompt: the rules as system message, the grid with line
// breaks, sentences; a move is r1c2=3, a grid may stand in <grid></grid>; the last one counts, text around it does not matter.
//
// Reward components, each from 0 to 1, with weights from the configuration: "solved", and "filled", the share of the open cells that
// have their digit in the end. Metrics: "turns", "mistakes", "unreadable" (replies that are no move or grid), "empty" (open cells at
// the start).
//
// Held out: a hash of the solution decides which split a puzzle is in, so no solution is in both. The seed plays no part. The
// demonstration is the moves in order of the cells, or the solution.
//
// Reference player (solves the grid it sees): 1.2. Random player (a random digit in a random open cell): 0.01.
package sudoku

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Config holds the options of sudoku.
type Config struct {
	Size  int    `toml:"size" json:"size"`   // digits: 4 (default) or 9
	Level string `toml:"level" json:"level"` // "easy" (default), "medium", "hard" or "expert"
	Empty int    `toml:"empty" json:"empty"` // open cells, up to size²; default 0: as many as the level allows
	Mode  string `toml:"mode" json:"mode"`   // "move" (default) or "grid"
	// Mistakes is how many lose the game, 1 to 100; default 3.
	Mistakes int  `toml:"mistakes" json:"mistakes"`
	Hints    bool `toml:"hints" json:"hints"` // whether a wrong move is answered with where to look next; default false
	// TrainTasks and EvalTasks are the sizes of the splits, at least 1; default 1024 and 128.
	TrainTasks  int     `toml:"train_tasks" json:"train_tasks"`
	EvalTasks   int     `toml:"eval_tasks" json:"eval_tasks"`
	EvalPercent int     `toml:"eval_percent" json:"eval_percent"` // share of the solutions that is held out, 1 to 50; default 20
	Prompt      string  `toml:"prompt" json:"prompt"`             // "compact" (default) or "full"
	Weights     Weights `toml:"weights" json:"weights"`
}

// Weights are what the reward components count; at least 0.
type Weights struct {
	Solved float64 `toml:"solved" json:"solved"` // for the whole grid; default 1
	Filled float64 `toml:"filled" json:"filled"` // for the share of the open cells that are right; default 0.2
}

// Defaults is the configuration of 4 × 4 cells, one move a turn.
func Defaults() Config {
	return Config{
		Size: 4, Level: "easy", Mode: "move", Mistakes: 3, TrainTasks: 1024, EvalTasks: 128, EvalPercent: 20, Prompt: "compact",
		Weights: Weights{Solved: 1, Filled: 0.2},
	}
}

// Validate returns every conflict, each with what to change.
func (c Config) Validate() error {
	var errs []error
	if shapes[c.Size] == nil {
		errs = append(errs, fmt.Errorf("size = %d: want 4 or 9", c.Size))
	}
	switch {
	case !slices.Contains(levels, c.Level):
		errs = append(errs, fmt.Errorf("level = %q: want one of %s", c.Level, strings.Join(levels, ", ")))
	case c.Size == 4 && c.Level != "easy":
		errs = append(errs, fmt.Errorf("level = %q: puzzles of size = 4 are all easy; want that, or size = 9", c.Level))
	}
	if c.Empty < 0 || c.Empty > c.Size*c.Size {
		errs = append(errs, fmt.Errorf("empty = %d: want 1 to %d, or 0 for as many as can be", c.Empty, c.Size*c.Size))
	}
	if c.Mode != "move" && c.Mode != "grid" {
		errs = append(errs, fmt.Errorf("mode = %q: want move or grid", c.Mode))
	}
	if c.Mistakes < 1 || c.Mistakes > 100 {
		errs = append(errs, fmt.Errorf("mistakes = %d: want 1 to 100", c.Mistakes))
	}
	errs = append(errs, env.CheckTasks(c.TrainTasks, c.EvalTasks), env.CheckPercent(c.EvalPercent), env.CheckPrompt(c.Prompt))
	for _, w := range []float64{c.Weights.Solved, c.Weights.Filled} {
		if !(w >= 0 && w <= math.MaxFloat32) {
			errs = append(errs, fmt.Errorf("weights: %v: want a number of at least 0", w))
		}
	}
	return errors.Join(errs...)
}

// Sudoku is the environment.
type Sudoku struct {
	cfg   Config
	shape *shape
	tasks sync.Map // place → json.RawMessage: a hard puzzle takes tens of milliseconds to make
	// baselines are computed when they are first asked for.
	baselines map[env.Split]func() map[string]float64
}

// place is a task by its number.
type place struct {
	split env.Split
	index int
}

// New makes the environment of a configuration; an error if that is not valid or no puzzle has what it asks for.
func New(cfg Config) (*Sudoku, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	s := &Sudoku{cfg: cfg, shape: shapes[cfg.Size], baselines: map[env.Split]func() map[string]float64{}}
	for _, split := range []env.Split{env.Train, env.Eval} {
		if _, err := s.Task(split, 0); err != nil {
			return nil, err
		}
		s.baselines[split] = sync.OnceValue(func() map[string]float64 { return s.measure(split) })
	}
	return s, nil
}

// Info implements [env.Environment].
func (s *Sudoku) Info() env.Info {
	turns := s.cfg.Mistakes
	if s.cfg.Mode == "move" {
		turns += s.cfg.Size * s.cfg.Size
	}
	return env.Info{
		Name: "sudoku", Version: "1", Train: s.cfg.TrainTasks, Eval: s.cfg.EvalTasks, Disjoint: true, MaxTurns: turns,
		CutReplies: s.cfg.Prompt == "compact" && s.cfg.Mode == "move",
	}
}

// task is the JSON of a task.
type task struct {
	Puzzle string `json:"puzzle"` // row by row, . for an open cell
	Level  string `json:"level"`
}

// Task implements [env.Environment]: {"puzzle": "1..4...", "level": "easy"}.
func (s *Sudoku) Task(split env.Split, index int) (json.RawMessage, error) {
	if err := env.CheckIndex(s.Info(), split, index); err != nil {
		return nil, err
	}
	if known, ok := s.tasks.Load(place{split, index}); ok {
		return slices.Clone(known.(json.RawMessage)), nil
	}
	puzzle, err := s.puzzle(split, index)
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(task{text(puzzle), s.cfg.Level})
	if err != nil {
		return nil, err
	}
	s.tasks.Store(place{split, index}, json.RawMessage(text))
	return slices.Clone(json.RawMessage(text)), nil
}

// puzzle draws solutions until one has a puzzle of the level.
func (s *Sudoku) puzzle(split env.Split, index int) ([]byte, error) {
	want := level(slices.Index(levels, s.cfg.Level))
	for round := range 50 {
		what := fmt.Sprintf("sudoku of size = %d, level = %q, empty = %d, round %d", s.cfg.Size, s.cfg.Level, s.cfg.Empty, round)
		var rng *rand.Rand
		solution, err := env.Draw(what, split, index, s.cfg.EvalPercent, func(r *rand.Rand) ([]byte, string) {
			rng = r
			solution := fill(s.shape, r)
			return solution, text(solution)
		})
		if err != nil {
			return nil, err
		}
		for range 10 {
			if puzzle, ok := dig(s.shape, solution, want, s.cfg.Empty, rng); ok {
				return puzzle, nil
			}
		}
	}
	return nil, fmt.Errorf("level = %q, empty = %d: 500 puzzles were made and none is like that; change empty", s.cfg.Level, s.cfg.Empty)
}

// Start implements [env.Environment].
func (s *Sudoku) Start(_ context.Context, data json.RawMessage, _ int64) (env.Episode, error) {
	return s.game(data)
}

// Rescore implements [env.Rescorer].
func (s *Sudoku) Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []env.Message, ended bool) (env.Score, error) {
	return env.Rescore(ctx, s, task, seed, messages, ended)
}

// Demonstrate implements [env.Demonstrator].
func (s *Sudoku) Demonstrate(data json.RawMessage, _ int64) (string, error) {
	g, err := s.game(data)
	if err != nil {
		return "", err
	}
	if s.cfg.Mode == "grid" {
		return text(g.solution), nil
	}
	var moves []string
	for cell, d := range g.grid {
		if d == 0 {
			moves = append(moves, g.write(move{cell, g.solution[cell]}))
		}
	}
	return strings.Join(moves, " "), nil
}

// game decodes a task and solves it; an error if it has not exactly one solution.
func (s *Sudoku) game(data json.RawMessage) (*game, error) {
	var t task
	if err := json.Unmarshal(data, &t); err != nil {
		return nil, fmt.Errorf("decode task: %w", err)
	}
	puzzle, ok := s.shape.parse(t.Puzzle)
	if !ok {
		return nil, fmt.Errorf("task %s: the puzzle is not %d digits and dots", data, s.cfg.Size*s.cfg.Size)
	}
	g, ok := newGrid(s.shape, puzzle)
	if !ok {
		return nil, fmt.Errorf("task %s: a digit stands twice in a row, column or box", data)
	}
	if given := len(puzzle) - strings.Count(t.Puzzle, "."); given < s.cfg.Size {
		return nil, fmt.Errorf("task %s: %d digits are given, and so few have many solutions", data, given)
	}
	n, solution := g.solve(2, nil)
	if n != 1 {
		return nil, fmt.Errorf("task %s: the puzzle has not exactly one solution", data)
	}
	return newGame(s.cfg, s.shape, puzzle, solution), nil
}
