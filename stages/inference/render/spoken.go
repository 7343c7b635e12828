package render

import (
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/internal/bpe"
)

// markers are what the text of an answer is taken apart by.
var markers = []string{thinkOpen, thinkClose, callOpen, callClose}

// spoken is an answer's tokens without the one that ends it, as a text of bytes in which each token has its place.
type spoken struct {
	tok    *bpe.Tokenizer
	tokens []int32
	starts []int // of the tokens in text, and its length
	text   string
	ended  bool
}

// Text implements Renderer.
func (t *tokenizer) Text(id int32) string {
	text := t.tok.Text(id)
	if t.tok.IsSpecial(id) && !slices.Contains(markers, text) {
		return ""
	}
	return text
}

// hear takes an answer that one of the stop tokens may end.
func (t *tokenizer) hear(answer []int32) spoken {
	s := spoken{tok: t.tok, tokens: answer}
	if n := len(answer); n > 0 && slices.Contains(t.stop, answer[n-1]) {
		s.tokens, s.ended = answer[:n-1], true
	}
	var b strings.Builder
	for _, id := range s.tokens {
		s.starts = append(s.starts, b.Len())
		b.WriteString(t.Text(id))
	}
	s.text = b.String()
	s.starts = append(s.starts, len(s.text))
	return s
}

// find gives the place of a marker. One that is a token is found as that token only: text that spells it is text.
func (s *spoken) find(marker string, from int) int {
	id, ok := s.tok.Added(marker)
	if !ok {
		return inText(s.text)(marker, from)
	}
	first, _ := slices.BinarySearch(s.starts, from)
	for i := first; i < len(s.tokens); i++ {
		if s.tokens[i] == id {
			return s.starts[i]
		}
	}
	return -1
}

// part is an answer whose content is text[from:to].
func (s *spoken) part(from, to int) Answer {
	a := Answer{Content: valid(s.text[from:to]), Ended: s.ended}
	a.From, _ = slices.BinarySearch(s.starts[1:], from+1) // the first token that ends behind from
	a.To, _ = slices.BinarySearch(s.starts[:len(s.tokens)], to)
	a.To = max(a.From, a.To)
	return a
}

func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
