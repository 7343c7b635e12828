package env

import (
	"fmt"
	"unicode/utf8"
)

// CharRewards are rewards of the characters of one reply: one number for each Unicode code point of its content, in order, and
// one more for ending the reply there. So its length is utf8.RuneCountInString(content)+1. An empty one means that the reply
// has no such rewards.
//
// They say where in a reply the credit belongs. They are not part of the reward's total, which the environment gives apart.
type CharRewards []float64

func (c CharRewards) check(content string) error {
	if len(c) == 0 {
		return nil
	}
	if want := utf8.RuneCountInString(content) + 1; len(c) != want {
		return fmt.Errorf("%d character rewards, want %d: one per character and one for the end", len(c), want)
	}
	for i, v := range c {
		if !finite(v) {
			return fmt.Errorf("character reward %d is not finite", i)
		}
	}
	return nil
}

// Tokens spreads the rewards over the tokens of the reply: a token gets the sum of the rewards of the characters that end in
// it. widths[i] is the number of bytes of content that token i stands for; tokens that stand for no text (0) get 0, except
// that the first such token behind the last byte is the end token and gets the reward for ending. A reply that was cut has no
// end token, and that reward goes to nobody.
//
// So a tokenizer with one token per character maps 1:1, a word-level one adds up, and with a byte-level one the last byte of a
// character carries its reward. An error if the rewards do not fit the content, or the widths do not add up to its length.
func (c CharRewards) Tokens(content string, widths []int) ([]float64, error) {
	if err := c.check(content); err != nil {
		return nil, err
	}
	out := make([]float64, len(widths))
	if len(c) == 0 {
		return out, nil
	}
	pos, char, charEnd, ended := 0, 0, 0, false
	for i, w := range widths {
		if w < 0 || w > len(content)-pos {
			return nil, fmt.Errorf("token %d stands for %d bytes at byte %d of %d", i, w, pos, len(content))
		}
		if w == 0 && pos == len(content) && !ended {
			out[i], ended = c[len(c)-1], true
			continue
		}
		pos += w
		for charEnd < pos {
			_, size := utf8.DecodeRuneInString(content[charEnd:])
			if charEnd+size > pos {
				break
			}
			out[i] += c[char]
			charEnd += size
			char++
		}
	}
	if pos != len(content) {
		return nil, fmt.Errorf("tokens stand for %d bytes of %d", pos, len(content))
	}
	return out, nil
}
