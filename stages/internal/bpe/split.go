package bpe

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// gpt2 is the pattern that ByteLevel splits by with use_regex.
const gpt2 = `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`

// A split cuts text into the matches of a pattern and what lies between them. The patterns that tokenizers are published
// with are alternatives out of a dozen; each is written by hand here. So they need no engine that backtracks (one of them
// looks ahead, which package regexp does not), are several times faster than one, and what they mean is exactly what the
// library's engine takes them for, its Unicode version included.
type split []alternative

// An alternative gives the length of its match at the start of text, or 0.
type alternative func(text string) int

// alternatives by how a pattern spells them. They match as much as they can.
var alternatives = map[string]alternative{
	`'s`: literal("'s"), `'t`: literal("'t"), `'re`: literal("'re"), `'ve`: literal("'ve"), `'m`: literal("'m"),
	`'ll`: literal("'ll"), `'d`: literal("'d"),
	`(?i:'s|'t|'re|'ve|'m|'ll|'d)`: contraction,
	` ?\p{L}+`:                     spaced(letter),
	` ?\p{N}+`:                     spaced(number),
	` ?[^\s\p{L}\p{N}]+`:           spaced(other),
	` ?[^\s\p{L}\p{N}]+[\r\n]*`:    symbols,
	`[^\r\n\p{L}\p{N}]?\p{L}+`:     word,
	`\p{N}`:                        numbers(1),
	`\p{N}{1,3}`:                   numbers(3),
	`\s*[\r\n]+`:                   lines,
	`\s+(?!\S)`:                    spaceBeforeSpace,
	`\s+`:                          spaces,
}

// newSplit reads a pattern.
func newSplit(pattern string) (split, error) {
	var s split
	for _, spelt := range alternativesOf(pattern) {
		a, ok := alternatives[spelt]
		if !ok {
			return nil, fmt.Errorf("the pattern %q is not supported, for its alternative %q", pattern, spelt)
		}
		s = append(s, a)
	}
	return s, nil
}

// alternativesOf cuts a pattern at the bars outside of parentheses.
func alternativesOf(pattern string) []string {
	var out []string
	depth, start := 0, 0
	for i := range len(pattern) {
		switch pattern[i] {
		case '(':
			depth++
		case ')':
			depth--
		case '|':
			if depth == 0 {
				out, start = append(out, pattern[start:i]), i+1
			}
		}
	}
	return append(out, pattern[start:])
}

// next is the length of the first piece of a text that is not empty.
func (s split) next(text string) int {
	for at := range text {
		if n := s.match(text[at:]); n > 0 && at == 0 {
			return n
		} else if n > 0 {
			return at
		}
	}
	return len(text)
}

func (s split) match(text string) int {
	for _, a := range s {
		if n := a(text); n > 0 {
			return n
		}
	}
	return 0
}

func literal(word string) alternative {
	return func(text string) int {
		if strings.HasPrefix(text, word) {
			return len(word)
		}
		return 0
	}
}

// contraction folds case as Unicode does: ſ is an s.
func contraction(text string) int {
	if len(text) < 2 || text[0] != '\'' {
		return 0
	}
	switch text[1] | 0x20 {
	case 's', 't', 'm', 'd':
		return 2
	}
	if strings.HasPrefix(text[1:], "ſ") {
		return 1 + len("ſ")
	}
	if len(text) > 2 {
		switch string([]byte{text[1] | 0x20, text[2] | 0x20}) {
		case "re", "ve", "ll":
			return 3
		}
	}
	return 0
}

// run is the length of the characters of a class at the start of text.
func run(text string, in class) int {
	for i, r := range text {
		if classOf(r) != in {
			return i
		}
	}
	return len(text)
}

// spaced are characters of a class, behind a space or not.
func spaced(in class) alternative {
	return func(text string) int {
		if strings.HasPrefix(text, " ") {
			if n := run(text[1:], in); n > 0 {
				return 1 + n
			}
		}
		return run(text, in)
	}
}

// symbols are neither letters, numbers nor space, behind a space or not, with the ends of lines behind them.
func symbols(text string) int {
	n := spaced(other)(text)
	if n == 0 {
		return 0
	}
	for n < len(text) && (text[n] == '\r' || text[n] == '\n') {
		n++
	}
	return n
}

// word is letters, behind one character that is no letter, number or end of a line, or not.
func word(text string) int {
	r, size := utf8.DecodeRuneInString(text)
	switch c := classOf(r); {
	case c == letter:
		return run(text, letter)
	case c == number || r == '\r' || r == '\n':
		return 0
	}
	if n := run(text[size:], letter); n > 0 {
		return size + n
	}
	return 0
}

func numbers(most int) alternative {
	return func(text string) int {
		k := 0
		for i, r := range text {
			if k == most || classOf(r) != number {
				return i
			}
			k++
		}
		return len(text)
	}
}

// lines is space up to its last end of a line.
func lines(text string) int {
	return strings.LastIndexAny(text[:run(text, space)], "\r\n") + 1
}

// spaceBeforeSpace is space that ends the text, or else all of it but its last character.
func spaceBeforeSpace(text string) int {
	n := run(text, space)
	if n == len(text) {
		return n
	}
	_, size := utf8.DecodeLastRuneInString(text[:n])
	return n - size
}

func spaces(text string) int { return run(text, space) }
