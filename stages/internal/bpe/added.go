package bpe

import (
	"slices"
	"sort"
	"strings"
)

// A matcher finds added tokens in text: from left to right, of several the longest.
type matcher struct {
	first [256]bool // bytes that a token begins with
	names []named   // in order, each once
}

type named struct {
	name    string
	id      int32
	special bool
}

func newMatcher(tokens []named) matcher {
	m := matcher{names: slices.Clone(tokens)}
	slices.SortFunc(m.names, func(a, b named) int { return strings.Compare(a.name, b.name) })
	for _, n := range m.names {
		m.first[n.name[0]] = true
	}
	return m
}

// cut calls token for each added token of the text and rest for what lies between them, in order. Special ones are left
// in the text unless they are wanted.
func (m *matcher) cut(text string, special bool, token func(int32), rest func(string)) {
	start := 0
	for at := 0; at < len(text); {
		n, ok := m.at(text[at:])
		if !ok {
			at++
			continue
		}
		if n.special && !special {
			at += len(n.name)
			continue
		}
		if start < at {
			rest(text[start:at])
		}
		token(n.id)
		at += len(n.name)
		start = at
	}
	if start < len(text) {
		rest(text[start:])
	}
}

// at is the longest token that text begins with.
func (m *matcher) at(text string) (longest named, ok bool) {
	if !m.first[text[0]] {
		return named{}, false
	}
	names := m.names // that begin with text[:i]
	for i := 0; len(names) > 0; i++ {
		if len(names[0].name) == i {
			longest, ok, names = names[0], true, names[1:]
		}
		if i == len(text) {
			break
		}
		from := sort.Search(len(names), func(k int) bool { return names[k].name[i] >= text[i] })
		names = names[from:]
		names = names[:sort.Search(len(names), func(k int) bool { return names[k].name[i] > text[i] })]
	}
	return longest, ok
}
