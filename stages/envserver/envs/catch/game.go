package catch

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// game is one episode.
type game struct {
	cfg     Config
	start   start
	paddle  int // column
	row     int // of the ball
	invalid int // moves that were none
}

// Prompt implements [env.Episode].
func (g *game) Prompt() []env.Message {
	if g.cfg.Prompt == "compact" {
		return []env.Message{g.observe()}
	}
	rules := fmt.Sprintf("You move a paddle along the bottom row of a grid of %d columns (0 to %d) and %d rows (0 is the top). "+
		"A ball falls straight down, one row with every move of yours. Be in its column when it reaches row %d. "+
		"Answer each message with one letter: l moves the paddle one column to the left, r one to the right, s stays.",
		g.cfg.Columns, g.cfg.Columns-1, g.cfg.Rows, g.cfg.Rows-1)
	return []env.Message{env.System(rules), g.observe()}
}

// observe is what the policy sees of the grid.
func (g *game) observe() env.Message {
	if g.cfg.Prompt == "full" {
		return env.User(fmt.Sprintf("Ball: column %d, row %d. Paddle: column %d.", g.start.Ball, g.row, g.paddle))
	}
	width := len(fmt.Sprint(max(g.cfg.Columns, g.cfg.Rows) - 1))
	return env.User(fmt.Sprintf("%0*d%0*d%0*d", width, g.start.Ball, width, g.row, width, g.paddle))
}

// Reply implements [env.Episode].
func (g *game) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	g.move(strings.TrimSpace(reply.Content))
	if g.row == g.cfg.Rows-1 {
		return env.Turn{Done: true}, nil
	}
	return env.Turn{Messages: []env.Message{g.observe()}}, nil
}

// move plays one turn.
func (g *game) move(move string) {
	step, ok := moves[move]
	if !ok {
		g.invalid++
	}
	g.paddle = clamp(g.paddle+step, g.cfg.Columns)
	g.row++
}

// moves are the columns that each answer moves the paddle.
var moves = map[string]int{"l": -1, "s": 0, "r": 1}

// clamp keeps a column inside the walls.
func clamp(column, columns int) int { return min(max(column, 0), columns-1) }

// Score implements [env.Episode]. A game that was cut is lost.
func (g *game) Score(context.Context) (env.Score, error) {
	caught := g.row == g.cfg.Rows-1 && g.paddle == g.start.Ball
	stop := "missed"
	if caught {
		stop = "caught"
	}
	return env.Score{
		Rewards: env.Rewards{"caught": env.Value(env.Bool(caught))},
		Metrics: map[string]float64{
			"invalid_moves": float64(g.invalid),
			"distance":      math.Abs(float64(g.paddle - g.start.Ball)), // columns between ball and paddle at the end
		},
		Stop: stop,
	}, nil
}
