package wordle

import (
	"context"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// game is the state of an episode, however the guesses come.
type game struct {
	cfg         Config
	lexicon     *lexicon
	answer      string
	turns       int    // guesses made, refused ones included
	hints       []hint // of the guesses that were accepted
	notWords    int
	refused     int // words that break a rule
	spelled     int // letters over all guesses that begin some word
	solved      bool
	charRewards []env.CharRewards
}

// guess plays one guess, in lower case. It returns the hint, or why the guess is refused.
func (g *game) guess(text string) (h hint, refusal string) {
	g.turns++
	g.spelled += g.lexicon.spelled(text, g.shown())
	if !wellFormed(text) {
		g.notWords++
		return hint{}, "a guess is five letters"
	}
	if !g.lexicon.has(text) {
		g.notWords++
		return hint{}, text + " is not in the word list"
	}
	if !strings.HasPrefix(text, g.shown()) {
		g.refused++
		return hint{}, "the word begins with " + g.shown()
	}
	if g.cfg.Mode == "hard" {
		for _, earlier := range g.hints {
			if rule := earlier.breaks(text); rule != "" {
				g.refused++
				return hint{}, "hard mode: " + rule
			}
		}
	}
	h = hint{guess: text, marks: feedback(text, g.answer)}
	g.hints = append(g.hints, h)
	g.solved = text == g.answer
	return h, ""
}

// over reports whether the game is.
func (g *game) over() bool { return g.solved || g.turns >= g.cfg.Guesses }

// shown is the beginning of the answer that is known from the start.
func (g *game) shown() string { return g.answer[:g.cfg.Shown] }

// Score implements [env.Episode]. A game without a guess has 0 in every component.
func (g *game) Score(context.Context) (env.Score, error) {
	w := g.cfg.Weights
	turns := float64(max(g.turns, 1))
	var greens, yellows float64
	if n := len(g.hints); n > 0 {
		greens, yellows = g.hints[n-1].shares(g.cfg.Shown)
	}
	stop := "lost"
	if g.solved {
		stop = "solved"
	}
	return env.Score{
		Rewards: env.Rewards{
			"solved":   env.Weighted(env.Bool(g.solved), w.Solved),
			"green":    env.Weighted(greens, w.Green),
			"yellow":   env.Weighted(yellows, w.Yellow),
			"valid":    env.Weighted(float64(len(g.hints))/turns, w.Valid),
			"spelling": env.Weighted(float64(g.spelled)/(length*turns), w.Spelling),
		},
		Metrics: map[string]float64{
			"turns":     float64(g.turns),
			"not_words": float64(g.notWords),
			"refused":   float64(g.refused),
		},
		CharRewards: g.charRewards,
		Stop:        stop,
	}, nil
}
