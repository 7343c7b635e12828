package sudoku

import (
	"context"
	"maps"
	"math/rand/v2"

	"github.com/prl-project/prl/stages/envserver/env"
)

const (
	measuredTasks = 128 // the first ones of a split
	randomGames   = 1000
)

// Baselines implements [env.Baseliner], for the first 128 tasks of the split (all of them by default in an eval). "random" fills
// a uniformly random open cell, or in grid mode every open cell, with a uniformly random digit: the mean of 1,000 seeded games.
// "blind" says the same in every game, whatever it sees: at each turn the move, or in grid mode the digit of each cell, that is
// right in most of the games that still go on; a better sequence may exist. They take some tenths of a second the first time,
// seconds where puzzles are hard.
func (s *Sudoku) Baselines(split env.Split) map[string]float64 {
	if baselines, ok := s.baselines[split]; ok {
		return maps.Clone(baselines())
	}
	return nil
}

func (s *Sudoku) measure(split env.Split) map[string]float64 {
	return map[string]float64{"random": s.random(split), "blind": s.blind(split)}
}

// games are new games of the measured tasks.
func (s *Sudoku) games(split env.Split) []*game {
	games := make([]*game, 0, measuredTasks)
	for i := range min(measuredTasks, s.Info().Tasks(split)) {
		data, err := s.Task(split, i)
		if err != nil {
			continue // New has made one of each split
		}
		if g, err := s.game(data); err == nil {
			games = append(games, g)
		}
	}
	return games
}

// reward is the total of a game that has ended.
func (g *game) reward() float64 {
	score, _ := g.Score(context.Background()) // never an error
	return *score.Rewards.Total()
}

func (s *Sudoku) random(split env.Split) float64 {
	rng := rand.New(rand.NewPCG(1, 0))
	games := s.games(split)
	var sum float64
	for i := range randomGames {
		from := games[i%len(games)]
		g := newGame(s.cfg, s.shape, from.grid, from.solution)
		for !g.over() {
			if s.cfg.Mode == "grid" {
				for cell := range g.grid {
					g.try(move{cell, byte(1 + rng.IntN(s.cfg.Size))})
				}
			} else if g.try(move{g.openCell(rng), byte(1 + rng.IntN(s.cfg.Size))}) {
				continue
			}
			g.mistakes++
		}
		sum += g.reward()
	}
	return sum / randomGames
}

// openCell is a random one.
func (g *game) openCell(rng *rand.Rand) int {
	n := rng.IntN(g.left)
	for cell, d := range g.grid {
		if d == 0 {
			if n == 0 {
				return cell
			}
			n--
		}
	}
	return -1
}

func (s *Sudoku) blind(split env.Split) float64 {
	games := s.games(split)
	for {
		right := make([][10]int, s.cfg.Size*s.cfg.Size) // games that go on in which a digit is right in an open cell
		live := 0
		for _, g := range games {
			if g.over() {
				continue
			}
			live++
			for cell, d := range g.grid {
				if d == 0 {
					right[cell][g.solution[cell]]++
				}
			}
		}
		if live == 0 {
			break
		}
		for _, g := range games {
			if !g.over() {
				g.say(bestMoves(right, s.cfg.Mode == "grid"))
			}
		}
	}
	var sum float64
	for _, g := range games {
		sum += g.reward()
	}
	return sum / float64(len(games))
}

// bestMoves are the digit of each cell that is right most often, or only the best of these.
func bestMoves(right [][10]int, all bool) []move {
	var moves []move
	best, most := move{digit: 1}, 0
	for cell, counts := range right {
		m := move{cell, 1}
		for d, n := range counts {
			if n > counts[m.digit] {
				m.digit = byte(d)
			}
		}
		moves = append(moves, m)
		if n := counts[m.digit]; n > most {
			best, most = m, n
		}
	}
	if all {
		return moves
	}
	return []move{best}
}

// say plays one reply's moves.
func (g *game) say(moves []move) {
	right := false
	for _, m := range moves {
		right = g.try(m)
	}
	if len(moves) > 1 && g.left > 0 || len(moves) == 1 && !right {
		g.mistakes++
	}
}
