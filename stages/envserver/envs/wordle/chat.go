package wordle

import (
	"context"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/prl-project/prl/stages/envserver/env"
)

// chatGame takes guesses as text.
type chatGame struct{ *game }

// Prompt implements [env.Episode].
func (g *chatGame) Prompt() []env.Message {
	if g.cfg.Prompt == "compact" {
		return []env.Message{env.User(g.opening())}
	}
	return []env.Message{
		env.System(g.rules() + " Answer each message with your guess as <guess>word</guess>."),
		env.User(g.opening()),
	}
}

// opening is the first message: what is shown, and in the full prompt how many guesses there are.
func (g *game) opening() string {
	switch {
	case g.cfg.Prompt == "compact":
		return g.shown() + strings.Repeat(".", length-g.cfg.Shown)
	case g.cfg.Shown > 0:
		return fmt.Sprintf("The word begins with %s. Make your first guess; you have %d.", g.shown(), g.cfg.Guesses)
	default:
		return fmt.Sprintf("Make your first guess; you have %d.", g.cfg.Guesses)
	}
}

// rules is the game in words.
func (g *game) rules() string {
	text := "You play Wordle: find a secret five-letter English word. After each guess you see a mark for each of its letters: " +
		"g if the letter is right, y if it is elsewhere in the word, . if the word does not have it (or not as often). " +
		"A guess that is not an English word tells nothing and uses up a turn."
	if g.cfg.Shown > 0 {
		text += " The first letters are shown; every guess must begin with them, others are refused and use up a turn."
	}
	if g.cfg.Mode == "hard" {
		text += " Every guess must use what is known: green letters in place, yellow ones somewhere; others are refused and use up a turn."
	}
	return text
}

// Reply implements [env.Episode].
func (g *chatGame) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	guess, first := g.find(reply.Content)
	h, refusal := g.guess(guess)
	if g.cfg.CharRewards {
		g.charRewards = append(g.charRewards, g.credit(reply.Content, guess, first, h))
	}
	if g.over() {
		return env.Turn{Done: true}, nil
	}
	return env.Turn{Messages: []env.Message{env.User(g.answerTo(h, refusal))}}, nil
}

// answerTo is what the policy sees after a guess.
func (g *game) answerTo(h hint, refusal string) string {
	switch {
	case g.cfg.Prompt == "compact" && refusal != "":
		return "x"
	case g.cfg.Prompt == "compact":
		return h.board()
	case refusal != "":
		return fmt.Sprintf("Refused: %s. Guesses left: %d.", refusal, g.cfg.Guesses-g.turns)
	default:
		return fmt.Sprintf("%s\n%s\nGuesses left: %d.", h.guess, h, g.cfg.Guesses-g.turns)
	}
}

// find is the guess in a reply, in lower case, and the byte at which it stands.
func (g *chatGame) find(reply string) (guess string, first int) {
	end := len(reply)
	if g.cfg.Prompt == "full" {
		const open, shut = "<guess>", "</guess>"
		if i := strings.LastIndex(reply, open); i >= 0 {
			first = i + len(open)
			if j := strings.Index(reply[first:], shut); j >= 0 {
				end = first + j
			}
		}
	}
	first = end - len(strings.TrimLeftFunc(reply[first:end], unicode.IsSpace))
	return lower(strings.TrimRightFunc(reply[first:end], unicode.IsSpace)), first
}

// lower lowers the letters A to Z, so that no byte moves.
func lower(text string) string {
	b := []byte(text)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

// credit says which characters of a reply earned what; the package comment has the rule.
func (g *chatGame) credit(reply, guess string, first int, h hint) env.CharRewards {
	w := g.cfg.Weights
	rewards := make(env.CharRewards, utf8.RuneCountInString(reply)+1)
	at := utf8.RuneCountInString(reply[:first])
	for i := range g.lexicon.spelled(guess, g.shown()) { // these are letters a to z: a byte each
		rewards[at+i] += w.Spelling
	}
	if h.guess == "" {
		return rewards
	}
	for i, m := range h.marks {
		switch {
		case i < g.cfg.Shown:
		case m == green:
			rewards[at+i] += w.Green
		case m == yellow && !g.tried(i, guess[i]):
			rewards[at+i] += w.Yellow
		}
	}
	rewards[len(rewards)-1] = w.Valid + w.Solved*env.Bool(g.solved)
	return rewards
}

// tried reports whether a guess before the last one had the letter in the same place, so that its mark is no news.
func (g *game) tried(place int, letter byte) bool {
	for _, h := range g.hints[:len(g.hints)-1] {
		if h.guess[place] == letter {
			return true
		}
	}
	return false
}
