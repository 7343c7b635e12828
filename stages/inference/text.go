package inference

import "strings"

// text is the text of an answer as it grows token by token, up to the first stop string. What it has given out stays: a
// character whose bytes are not all there is held back, and so is what may be the beginning of a stop string. As it looks at
// one token after the other, the text does not depend on how many of them came at once.
type text struct {
	decode  func([]int32) string
	stop    []string // none is empty
	include bool     // what stops it is part of the text

	pending []int32 // tokens since the last whole character
	given   int     // bytes of their text that were given out or are held
	held    string  // may be the beginning of a stop string
	ended   bool
	found   string // the stop string that ended it
	over    string // of the last token, behind the end
}

// maxPending is how many tokens may stand for one character. A byte is a token at least, so more of them are no UTF-8.
const maxPending = 64

// add takes the next token and returns the text that is certain by now.
func (t *text) add(token int32) string {
	t.pending = append(t.pending, token)
	all := t.decode(t.pending)
	whole := strings.TrimRight(all, "\uFFFD")
	if len(t.pending) >= maxPending {
		whole = all
	}
	grown := t.held
	if len(whole) > t.given {
		grown, t.given = grown+whole[t.given:], len(whole)
	}
	if whole == all {
		t.pending, t.given = t.pending[:0], 0
	}
	return t.cut(grown)
}

// cut ends the text at a stop string, or holds back the longest end of grown that one could begin with.
func (t *text) cut(grown string) string {
	at := -1
	for _, s := range t.stop {
		if i := strings.Index(grown, s); i >= 0 && (at < 0 || i < at) {
			at, t.found = i, s
		}
	}
	if at >= 0 {
		if t.include {
			at += len(t.found)
		}
		t.ended, t.held, t.over = true, "", grown[at:]
		return grown[:at]
	}
	n := 0
	for _, s := range t.stop {
		for i := min(len(s)-1, len(grown)); i > n; i-- {
			if strings.HasSuffix(grown, s[:i]) {
				n = i
			}
		}
	}
	t.held = grown[len(grown)-n:]
	return grown[:len(grown)-n]
}

// stopAt takes a token that ends the answer and returns what is left of the text.
func (t *text) stopAt(token int32) string {
	if t.include {
		return t.add(token) + t.end()
	}
	last := t.end()
	t.over = t.decode([]int32{token})
	return last
}

// end returns what was held back, when no more tokens come.
func (t *text) end() string {
	if t.ended {
		return ""
	}
	last := t.tail()
	t.ended, t.held, t.pending, t.given = true, "", nil, 0
	return last
}

// tail is the end of all tokens' text that is not part of the text, or not for certain yet.
func (t *text) tail() string {
	rest := t.decode(t.pending)
	return t.held + t.over + rest[min(t.given, len(rest)):]
}
