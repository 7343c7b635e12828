package wordle

import (
	_ "embed"
	"slices"
	"strings"
)

// The words of SCOWL by Kevin Atkinson, most common level first; licence in LICENSE.scowl.
//
//go:embed words.txt
var wordFile string

// dictionary is the list in the file's order; the first common words are those of levels up to 35, which answers are drawn from.
var dictionary, common = parse(wordFile)

// parse reads lines of words, "# level n" lines and other comments.
func parse(file string) (words []string, common int) {
	for line := range strings.Lines(file) {
		line = strings.TrimSpace(line)
		switch {
		case line == "# level 40":
			common = len(words)
		case line != "" && line[0] != '#':
			words = append(words, line)
		}
	}
	return words, common
}

// lexicon is the set of words that count as words in a game.
type lexicon struct {
	words  []string // most common first
	sorted []string
}

func newLexicon(words []string) *lexicon {
	l := &lexicon{words: words, sorted: slices.Clone(words)}
	slices.Sort(l.sorted)
	return l
}

func (l *lexicon) has(word string) bool {
	_, ok := slices.BinarySearch(l.sorted, word)
	return ok
}

// spelled is the length of the longest beginning of the text with which some word begins that begins as shown: 0 to 5.
func (l *lexicon) spelled(text, shown string) int {
	n := 0
	for n < min(len(text), length) {
		if n < len(shown) && text[n] != shown[n] {
			break
		}
		i, _ := slices.BinarySearch(l.sorted, text[:n+1])
		if i == len(l.sorted) || !strings.HasPrefix(l.sorted[i], text[:n+1]) {
			break
		}
		n++
	}
	return n
}
