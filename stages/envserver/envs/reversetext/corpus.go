package reversetext

import (
	_ "embed"
	"regexp"
	"strings"
)

// alice is "Alice's Adventures in Wonderland", 1865, in the public domain.
//
//go:embed alice.txt
var alice string

var (
	// A run is what stands between punctuation or paragraphs: words separated by blanks or the end of a line.
	runs = regexp.MustCompile(`[a-z']+(?:(?: +| *\n *)[a-z']+)*`)
	// Chapter numbers are the only words of the text made of these letters that are no words.
	roman = regexp.MustCompile(`^[ivx]+$`)
)

// pieces are the distinct runs of 1 to PhraseWords words of a text that have a length within the bounds.
func pieces(text string, cfg Config) []string {
	seen := map[string]bool{}
	for _, run := range runs.FindAllString(strings.ToLower(text), -1) {
		words := strings.Fields(run)
		for i := range words {
			for n := 1; n <= cfg.PhraseWords && i+n <= len(words); n++ {
				if !isWord(words[i+n-1]) {
					break
				}
				piece := strings.Join(words[i:i+n], " ")
				if len(piece) > cfg.MaxLength {
					break
				}
				if len(piece) >= cfg.MinLength {
					seen[piece] = true
				}
			}
		}
	}
	out := make([]string, 0, len(seen))
	for piece := range seen {
		out = append(out, piece)
	}
	return out
}

// isWord leaves out contractions, letters with a quotation mark, and chapter numbers.
func isWord(w string) bool {
	return !strings.Contains(w, "'") && (w == "i" || !roman.MatchString(w))
}
