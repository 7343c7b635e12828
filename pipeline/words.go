package pipeline

import (
	"strings"
	"sync"
)

const (
	// mostWords bounds the values of a label whose values others choose.
	mostWords = 100
	// mostWord bounds each of them, in bytes.
	mostWord = 100
	// OtherWord stands for all that come later.
	OtherWord = "other"
)

// Words makes values of a metric's label of what environments, servers and records say: valid, short, and not too many different
// ones, for each makes a series. The first stand for themselves. The zero value is ready; it is safe for concurrent use.
type Words struct {
	mu   sync.Mutex
	seen map[string]string // by what was said
}

// Of is the value of the label for a word.
func (w *Words) Of(word string) string {
	word = word[:min(len(word), mostWord)]
	w.mu.Lock()
	defer w.mu.Unlock()
	if value, ok := w.seen[word]; ok {
		return value
	}
	if w.seen == nil {
		w.seen = map[string]string{}
	}
	if len(w.seen) >= mostWords {
		return OtherWord
	}
	value := strings.ToValidUTF8(word, "")
	w.seen[strings.Clone(word)] = value
	return value
}
