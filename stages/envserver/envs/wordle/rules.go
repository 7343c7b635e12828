package wordle

import (
	"fmt"
	"strings"
)

// length is the number of letters of every word.
const length = 5

// mark is what a guess says of one of its letters.
type mark byte

const (
	grey   mark = '.' // not in the answer, or not once more
	yellow mark = 'y' // elsewhere in the answer
	green  mark = 'g' // here
)

// feedback marks the letters of a guess: first those in place, then, from the left, each that the answer has once more and not
// yet accounted for. So a letter is green or yellow at most as often as the answer has it.
func feedback(guess, answer string) [length]mark {
	var marks [length]mark
	var left [26]int // letters of the answer that are not accounted for
	for i := range length {
		marks[i] = grey
		if guess[i] == answer[i] {
			marks[i] = green
		} else {
			left[answer[i]-'a']++
		}
	}
	for i := range length {
		if c := guess[i] - 'a'; marks[i] == grey && left[c] > 0 {
			marks[i] = yellow
			left[c]--
		}
	}
	return marks
}

// hint is a guess and what it told.
type hint struct {
	guess string
	marks [length]mark
}

func (h hint) String() string {
	b := make([]byte, length)
	for i, m := range h.marks {
		b[i] = byte(m)
	}
	return string(b)
}

// board is the letters that are right, in their places, ? for a letter that is elsewhere and . for one that is not.
func (h hint) board() string {
	b := []byte(h.guess)
	for i, m := range h.marks {
		switch m {
		case yellow:
			b[i] = '?'
		case grey:
			b[i] = '.'
		}
	}
	return string(b)
}

// shares are the shares of green and of yellow letters behind the first shown ones, which are green in every guess.
func (h hint) shares(shown int) (greens, yellows float64) {
	for _, m := range h.marks[shown:] {
		switch m {
		case green:
			greens++
		case yellow:
			yellows++
		}
	}
	open := float64(length - shown)
	return greens / open, yellows / open
}

// breaks says which rule of hard mode a guess breaks with respect to an earlier hint; empty if none. Green letters stay where
// they are, and a letter is used at least as often as it was green or yellow. (As in the game itself, a yellow letter may be
// tried again where it was, and a grey one anywhere.)
func (h hint) breaks(guess string) string {
	for i, m := range h.marks {
		if m == green && guess[i] != h.guess[i] {
			return fmt.Sprintf("letter %d must be %c", i+1, h.guess[i])
		}
	}
	for i, m := range h.marks {
		if m == grey {
			continue
		}
		letter := h.guess[i]
		needed := 0
		for j, m := range h.marks {
			if m != grey && h.guess[j] == letter {
				needed++
			}
		}
		if strings.Count(guess, string(letter)) < needed {
			return fmt.Sprintf("the guess must have %d × %c", needed, letter)
		}
	}
	return ""
}

// wellFormed reports whether a text is five letters a to z.
func wellFormed(text string) bool {
	if len(text) != length {
		return false
	}
	for i := range length {
		if text[i] < 'a' || text[i] > 'z' {
			return false
		}
	}
	return true
}
