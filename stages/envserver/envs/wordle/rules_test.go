package wordle

import (
	"math/rand/v2"
	"testing"
)

func TestFeedback(t *testing.T) {
	for _, test := range []struct{ guess, answer, want string }{
		{"crane", "crane", "ggggg"},
		{"crane", "sloth", "....."},
		{"crane", "nacre", "yyyyg"},
		{"stare", "tears", "yyggy"},
		// A letter is marked as often as the answer has it, green before yellow, then from the left.
		{"allee", "apple", "gy..g"},
		{"speed", "abide", "..y.y"},
		{"speed", "erase", "y.yy."},
		{"speed", "steal", "g.g.."},
		{"speed", "crepe", ".ygy."},
		{"eerie", "there", "y.y.g"},
		{"there", "eerie", "..yyg"},
		{"mamma", "maxim", "ggy.."},
		{"geese", "eject", ".yg.."},
		{"sassy", "glass", "yy.g."},
		{"lolly", "llama", "g.y.."},
		{"llama", "lolly", "gy..."},
		{"babab", "abbey", "yyg.."},
		{"abbey", "kebab", "yygy."},
		{"kebab", "abbey", ".ygyy"},
	} {
		h := hint{test.guess, feedback(test.guess, test.answer)}
		if got := h.String(); got != test.want {
			t.Errorf("%s for %s: %s, want %s", test.guess, test.answer, got, test.want)
		}
	}
}

func TestBoard(t *testing.T) {
	for _, test := range []struct {
		guess, answer, board string
		shown                int
		greens, yellows      float64
	}{
		{"crane", "crane", "crane", 0, 1, 0},
		{"trace", "crane", ".ra?e", 0, 0.6, 0.2},
		{"yummy", "yawns", "y....", 0, 0.2, 0}, // the letter y is no mark
		{"crate", "crane", "cra.e", 1, 0.75, 0},
		{"cower", "crane", "c..??", 2, 0, 2. / 3},
	} {
		h := hint{test.guess, feedback(test.guess, test.answer)}
		greens, yellows := h.shares(test.shown)
		if h.board() != test.board || greens != test.greens || yellows != test.yellows {
			t.Errorf("%s for %s, %d shown: %s, %v green, %v yellow", test.guess, test.answer, test.shown, h.board(), greens, yellows)
		}
	}
}

// Of each letter as many are marked as guess and answer share; green is where they agree, and nowhere else.
func TestFeedbackProperties(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	word := func() string {
		b := make([]byte, length)
		for i := range b {
			b[i] = byte('a' + rng.IntN(3)) // few letters, so many duplicates
		}
		return string(b)
	}
	for range 20000 {
		guess, answer := word(), word()
		marks := feedback(guess, answer)
		var inGuess, inAnswer, marked [26]int
		for i := range length {
			inGuess[guess[i]-'a']++
			inAnswer[answer[i]-'a']++
			if marks[i] != grey {
				marked[guess[i]-'a']++
			}
			if (marks[i] == green) != (guess[i] == answer[i]) {
				t.Fatalf("%s for %s: %s", guess, answer, hint{guess, marks})
			}
		}
		for c := range marked {
			if marked[c] != min(inGuess[c], inAnswer[c]) {
				t.Fatalf("%s for %s: %s marks %c %d times", guess, answer, hint{guess, marks}, 'a'+c, marked[c])
			}
		}
		if rule := (hint{guess, marks}).breaks(answer); rule != "" {
			t.Fatalf("%s for %s: hard mode refuses the answer: %s", guess, answer, rule)
		}
	}
}

func TestHardMode(t *testing.T) {
	for _, test := range []struct{ guess, answer, next, want string }{
		{"crane", "crate", "crate", ""},
		{"crane", "crate", "brave", "letter 1 must be c"},
		{"crane", "nacre", "dance", "the guess must have 1 × r"},
		{"crane", "nacre", "caner", "letter 5 must be e"},
		{"crane", "sloth", "crane", ""}, // grey letters may be tried again
		{"eerie", "there", "hello", "letter 5 must be e"},
		{"eerie", "there", "purge", "the guess must have 2 × e"},
		{"eerie", "there", "where", ""},
		{"speed", "erase", "eases", ""},                          // yellow letters anywhere
		{"speed", "erase", "spews", "the guess must have 2 × e"}, // as often as marked
	} {
		h := hint{test.guess, feedback(test.guess, test.answer)}
		if got := h.breaks(test.next); got != test.want {
			t.Errorf("%s after %s %s: %q, want %q", test.next, test.guess, h, got, test.want)
		}
	}
}
