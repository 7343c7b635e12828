package sudoku

import (
	"context"
	"fmt"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// move is a digit in a cell.
type move struct {
	cell  int
	digit byte
}

// game is one episode.
type game struct {
	cfg        Config
	shape      *shape
	solution   []byte
	grid       []byte // the givens and what was filled
	empty      int    // cells, at the start
	left       int    // cells that are open
	tried      []move // and wrong, in order
	turns      int
	mistakes   int
	unreadable int
}

func newGame(cfg Config, s *shape, puzzle, solution []byte) *game {
	g := &game{cfg: cfg, shape: s, solution: solution, grid: append([]byte(nil), puzzle...)}
	for _, d := range puzzle {
		if d == 0 {
			g.empty++
		}
	}
	g.left = g.empty
	return g
}

// Prompt implements [env.Episode].
func (g *game) Prompt() []env.Message {
	if g.cfg.Prompt == "compact" {
		return []env.Message{env.User(g.show(false))}
	}
	return []env.Message{env.System(g.rules()), env.User(g.show(false))}
}

// Reply implements [env.Episode].
func (g *game) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	before := g.mistakes
	if g.cfg.Mode == "move" {
		g.playMove(reply.Content)
	} else {
		g.playGrid(reply.Content)
	}
	g.turns++
	if g.over() {
		return env.Turn{Done: true}, nil
	}
	return env.Turn{Messages: []env.Message{env.User(g.show(g.mistakes > before))}}, nil
}

func (g *game) over() bool { return g.left == 0 || g.mistakes >= g.cfg.Mistakes }

func (g *game) playMove(reply string) {
	m, ok := g.readMove(reply)
	if !ok {
		g.unreadable++
	}
	if !ok || !g.try(m) {
		g.mistakes++
	}
}

func (g *game) playGrid(reply string) {
	digits, ok := g.readGrid(reply)
	if !ok {
		g.unreadable++
	}
	for cell, d := range digits {
		if d != 0 && g.grid[cell] == 0 {
			g.try(move{cell, d})
		}
	}
	if g.left > 0 {
		g.mistakes++
	}
}

// try fills a cell if the digit is right, and else remembers that it is not. A cell that has its digit stays.
func (g *game) try(m move) bool {
	if g.grid[m.cell] != 0 {
		return false
	}
	if g.solution[m.cell] == m.digit {
		g.grid[m.cell] = m.digit
		g.left--
		return true
	}
	for _, t := range g.tried {
		if t == m {
			return false
		}
	}
	g.tried = append(g.tried, m)
	return false
}

// hint is the cell that the easiest technique fills next, and the technique.
func (g *game) hint() (cell int, how level) {
	work, _ := newGrid(g.shape, g.grid)
	if cell, how = work.step(eliminations); cell >= 0 {
		return cell, how
	}
	for c, d := range g.grid {
		if d == 0 {
			return c, search
		}
	}
	return -1, search
}

// Score implements [env.Episode]. A game that was cut is lost.
func (g *game) Score(context.Context) (env.Score, error) {
	solved := g.left == 0
	filled := 1.0
	if g.empty > 0 {
		filled = float64(g.empty-g.left) / float64(g.empty)
	}
	stop := "lost"
	if solved {
		stop = "solved"
	}
	return env.Score{
		Rewards: env.Rewards{
			"solved": env.Weighted(env.Bool(solved), g.cfg.Weights.Solved),
			"filled": env.Weighted(filled, g.cfg.Weights.Filled),
		},
		Metrics: map[string]float64{
			"turns": float64(g.turns), "mistakes": float64(g.mistakes), "unreadable": float64(g.unreadable), "empty": float64(g.empty),
		},
		Stop: stop,
	}, nil
}

// rules is the game in words.
func (g *game) rules() string {
	text := fmt.Sprintf("You solve a Sudoku of %d × %d cells: fill every open cell (.) so that each row, each column and each box of "+
		"%d × %d cells has every digit from 1 to %d once. It has exactly one solution. ", g.shape.size, g.shape.size, g.shape.box, g.shape.box, g.shape.size)
	if g.cfg.Mode == "move" {
		text += "Answer each message with one move such as r1c2=3, a 3 in row 1, column 2. A wrong digit, or one for a cell that has one, is a mistake. "
	} else {
		text += "Answer with the whole grid in <grid></grid>, row by row, with . for a cell you leave open. Right digits stay; an answer that is not the solution is a mistake. "
	}
	return text + fmt.Sprintf("The game is lost after %s.", plural(g.cfg.Mistakes, "mistake"))
}

func plural(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// show is what the policy sees; with a hint after a mistake, if there are hints.
func (g *game) show(mistake bool) string {
	full := g.cfg.Prompt == "full"
	var b strings.Builder
	if full {
		n := g.shape.size
		for row := range n {
			b.WriteString(text(g.grid[row*n:(row+1)*n]) + "\n")
		}
		fmt.Fprintf(&b, "Mistakes left: %d.", g.cfg.Mistakes-g.mistakes)
	} else {
		b.WriteString(text(g.grid))
	}
	for i, m := range g.tried {
		switch {
		case g.grid[m.cell] != 0 && !full: // its digit has been found since
		case !full:
			b.WriteString(" x" + g.write(m))
		case i == 0:
			b.WriteString(" Tried, and wrong: " + g.write(m))
		default:
			b.WriteString(", " + g.write(m))
		}
	}
	if full && len(g.tried) > 0 {
		b.WriteString(".")
	}
	if mistake && g.cfg.Hints {
		cell, how := g.hint()
		row, column := cell/g.shape.size+1, cell%g.shape.size+1
		if full {
			fmt.Fprintf(&b, " Hint: look at r%dc%d (%s).", row, column, techniques[how])
		} else {
			fmt.Fprintf(&b, " ?%d%d", row, column)
		}
	}
	return b.String()
}

// techniques are the levels in words.
var techniques = []string{
	"one digit is left for it", "a digit has no other place in its row, column or box", "once candidates are ruled out elsewhere", "by trying",
}
