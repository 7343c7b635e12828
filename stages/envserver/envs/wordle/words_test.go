package wordle

import (
	"slices"
	"testing"
)

func TestDictionary(t *testing.T) {
	if len(dictionary) != 6372 || common != 3450 {
		t.Errorf("%d words, %d of them common; the package comment says 6,372 and 3,450", len(dictionary), common)
	}
	seen := map[string]bool{}
	for _, w := range dictionary {
		if !wellFormed(w) || seen[w] {
			t.Errorf("%q is no five-letter word or stands there twice", w)
		}
		seen[w] = true
	}
	for _, w := range []string{"crane", "house", "water", "speed"} {
		if !slices.Contains(dictionary[:common], w) {
			t.Errorf("%q is not among the common words", w)
		}
	}
	if !slices.Contains(dictionary[:600], "about") {
		t.Error(`"about" is not among the 600 most common words`)
	}
}

func TestSpelled(t *testing.T) {
	l := newLexicon([]string{"crane", "crate", "slate"})
	for text, want := range map[string]int{
		"crane": 5, "crab": 3, "crazy": 3, "c": 1, "": 0, "xcran": 0, "slates": 5, "zzzzz": 0, "Crane": 0, "cr ne": 2, "\xff": 0,
	} {
		if got := l.spelled(text, ""); got != want {
			t.Errorf("%q spells %d letters, want %d", text, got, want)
		}
	}
	for text, want := range map[string]int{"crane": 5, "crab": 3, "slate": 0, "cl": 1, "c": 1, "": 0} {
		if got := l.spelled(text, "cr"); got != want {
			t.Errorf("%q spells %d letters of a word in cr, want %d", text, got, want)
		}
	}
}
