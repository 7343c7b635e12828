package wordle

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/prl-project/prl/stages/envserver/env"
)

const (
	randomGames = 2000
	randomSeed  = 1
	blindWords  = 200 // words that are tried at each place of a blind sequence
)

// Baselines implements [env.Baseliner]. All are chosen and measured on the very split, in the rules of easy mode:
//   - "fixed_word" repeats the one word that does best. Exact.
//   - "blind" makes the same sequence of guesses in every game: the first is the best fixed word, each further one what adds
//     most, among the 200 best fixed words. Exact for that sequence; a better one may exist.
//   - "random" guesses uniformly random words of the list; the mean of 2,000 seeded games.
//
// They take some tenths of a second the first time.
func (w *Wordle) Baselines(split env.Split) map[string]float64 {
	if baselines, ok := w.baselines[split]; ok {
		return maps.Clone(baselines())
	}
	return nil
}

func (w *Wordle) measure(answers []string) map[string]float64 {
	words := w.rank(answers)
	_, blind := w.blind(words, answers)
	return map[string]float64{"fixed_word": words[0].reward, "blind": blind, "random": w.random(answers)}
}

// ranked is a word and what repeating it brings.
type ranked struct {
	word   string
	reward float64
}

// rank sorts the words by what repeating each brings, best first. It uses that the green and yellow letters of a guess together are, for each letter, the smaller of how often guess and
// answer have it: so sums over the answers come from two tables.
func (w *Wordle) rank(answers []string) []ranked {
	var here [length][26]int        // answers with the letter at the place
	var atLeast [26][length + 1]int // answers with the letter at least so often
	is := map[string]bool{}
	for _, a := range answers {
		is[a] = true
		var n [26]int
		for i := range length {
			c := a[i] - 'a'
			here[i][c]++
			n[c]++
			atLeast[c][n[c]]++
		}
	}
	weights := w.cfg.Weights
	words := make([]ranked, 0, len(w.lexicon.words))
	for _, guess := range w.lexicon.words {
		var n [26]int
		greens, marked := 0, 0
		for i := range length {
			c := guess[i] - 'a'
			greens += here[i][c]
			n[c]++
			marked += atLeast[c][n[c]]
		}
		sum := weights.Solved*env.Bool(is[guess]) + (weights.Green*float64(greens)+weights.Yellow*float64(marked-greens))/length
		words = append(words, ranked{guess, sum/float64(len(answers)) + weights.Valid + weights.Spelling})
	}
	slices.SortFunc(words, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.reward, a.reward), cmp.Compare(a.word, b.word))
	})
	return words
}

// blind is a sequence of guesses that does not depend on what is seen, and its mean reward.
func (w *Wordle) blind(words []ranked, answers []string) (sequence []string, reward float64) {
	words = words[:min(blindWords, len(words))]
	games := make([]known, len(answers)) // what each game has told so far
	solved := make([]bool, len(answers))
	total := float64(len(answers)) * (w.cfg.Weights.Valid + w.cfg.Weights.Spelling) // only words are guessed
	for range w.cfg.Guesses {
		most, next := -1.0, ""
		for _, candidate := range words {
			var gain float64
			for i, answer := range answers {
				if !solved[i] {
					gain += w.worth(games[i], candidate.word, answer) - w.worth(games[i], "", answer)
				}
			}
			if gain > most {
				most, next = gain, candidate.word
			}
		}
		for i, answer := range answers {
			if !solved[i] {
				games[i].add(hint{next, feedback(next, answer)})
				solved[i] = answer == next
			}
		}
		total += most
		sequence = append(sequence, next)
	}
	return sequence, total / float64(len(answers))
}

// worth is the reward of a game that has told k, after one more guess, or as it is without one; what every word brings is
// left out.
func (w *Wordle) worth(k known, guess, answer string) float64 {
	if guess != "" {
		k.add(hint{guess, feedback(guess, answer)})
	}
	greens, yellows := k.shares()
	return w.cfg.Weights.Green*greens + w.cfg.Weights.Yellow*yellows + w.cfg.Weights.Solved*env.Bool(guess == answer)
}

func (w *Wordle) random(answers []string) float64 {
	rng := rand.New(rand.NewPCG(randomSeed, 0))
	rules := w.cfg
	rules.Mode = "easy"
	var sum float64
	for i := range randomGames {
		g := &game{cfg: rules, lexicon: w.lexicon, answer: answers[i%len(answers)]}
		for !g.over() {
			_, _ = g.guess(w.lexicon.words[rng.IntN(len(w.lexicon.words))])
		}
		score, _ := g.Score(context.Background()) // never an error
		sum += *score.Rewards.Total()
	}
	return sum / randomGames
}
