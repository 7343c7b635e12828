package wordle

import (
	"cmp"
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

const (
	randomGames = 10000
	randomSeed  = 1
	blindWords  = 200 // words that are tried at each place of a blind sequence
)

// Baselines implements [env.Baseliner]. All are chosen and measured on the very split, in the rules of easy mode:
//   - "fixed_word" repeats the one word that does best. Exact.
//   - "blind" makes the same sequence of guesses in every game, whatever it sees. Exact for the sequence that is found by
//     improving one guess after the other, among the 200 best fixed words, until no change helps; a better one may exist.
//   - "random" guesses uniformly random words of the list; the mean of 10,000 seeded games.
//   - "random_fit", where letters are shown, guesses uniformly random words that begin with them: it does look.
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
	_, blind := w.blind(words)
	baselines := map[string]float64{
		"fixed_word": words[0].reward,
		"blind":      blind,
		"random":     w.random(answers, func(string) []string { return w.lexicon.words }),
	}
	if w.cfg.Shown > 0 {
		baselines["random_fit"] = w.random(answers, w.fitting)
	}
	return baselines
}

// fitting are the words that may be guessed for an answer.
func (w *Wordle) fitting(answer string) []string {
	var fit []string
	for _, word := range w.lexicon.words {
		if strings.HasPrefix(word, answer[:w.cfg.Shown]) {
			fit = append(fit, word)
		}
	}
	return fit
}

// trial is what a word does as a guess for an answer.
type trial struct {
	accepted, solved bool
	words            float64 // weighted rewards of a game of such guesses alone: valid and spelling
	marks            float64 // weighted rewards of a game that ends with it: green, yellow and solved
}

func (w *Wordle) try(word, answer string) trial {
	weights := w.cfg.Weights
	if shown := answer[:w.cfg.Shown]; !strings.HasPrefix(word, shown) {
		return trial{words: weights.Spelling * float64(w.lexicon.spelled(word, shown)) / length}
	}
	greens, yellows := hint{word, feedback(word, answer)}.shares(w.cfg.Shown)
	return trial{
		accepted: true, solved: word == answer, words: weights.Valid + weights.Spelling,
		marks: weights.Green*greens + weights.Yellow*yellows + weights.Solved*env.Bool(word == answer),
	}
}

// ranked is a word, what it does for each answer, and the mean reward of repeating it.
type ranked struct {
	word   string
	trials []trial
	reward float64
}

// rank returns the words for which repeating brings most, best first.
func (w *Wordle) rank(answers []string) []ranked {
	words := make([]ranked, 0, len(w.lexicon.words))
	for _, word := range w.lexicon.words {
		var sum float64
		for _, answer := range answers {
			t := w.try(word, answer)
			sum += t.words + t.marks
		}
		words = append(words, ranked{word: word, reward: sum / float64(len(answers))})
	}
	slices.SortFunc(words, func(a, b ranked) int {
		return cmp.Or(cmp.Compare(b.reward, a.reward), cmp.Compare(a.word, b.word))
	})
	words = words[:min(blindWords, len(words))]
	for i := range words {
		for _, answer := range answers {
			words[i].trials = append(words[i].trials, w.try(words[i].word, answer))
		}
	}
	return words
}

// blind is a sequence of guesses that does not depend on what is seen, and its mean reward.
func (w *Wordle) blind(words []ranked) (sequence []string, reward float64) {
	guesses := make([]int, w.cfg.Guesses) // indices of words; the best fixed word to begin with
	reward = worth(words, guesses)
	for better := true; better; {
		better = false
		for place, best := range guesses {
			for candidate := range words {
				guesses[place] = candidate
				if r := worth(words, guesses); r > reward+1e-9 {
					reward, best, better = r, candidate, true
				}
			}
			guesses[place] = best
		}
	}
	for _, i := range guesses {
		sequence = append(sequence, words[i].word)
	}
	return sequence, reward
}

// worth is the mean reward of a sequence of guesses.
func worth(words []ranked, guesses []int) float64 {
	var sum float64
	for answer := range words[0].trials {
		var wordsSum, marks float64
		turns := 0
		for _, i := range guesses {
			t := words[i].trials[answer]
			turns++
			wordsSum += t.words
			if t.accepted {
				marks = t.marks
			}
			if t.solved {
				break
			}
		}
		sum += wordsSum/float64(turns) + marks
	}
	return sum / float64(len(words[0].trials))
}

// random plays with uniformly random words of those that choices gives for an answer.
func (w *Wordle) random(answers []string, choices func(answer string) []string) float64 {
	rng := rand.New(rand.NewPCG(randomSeed, 0))
	rules := w.cfg
	rules.Mode = "easy"
	var sum float64
	for i := range randomGames {
		g := &game{cfg: rules, lexicon: w.lexicon, answer: answers[i%len(answers)]}
		words := choices(g.answer)
		for !g.over() {
			_, _ = g.guess(words[rng.IntN(len(words))])
		}
		score, _ := g.Score(context.Background()) // never an error
		sum += *score.Rewards.Total()
	}
	return sum / randomGames
}
