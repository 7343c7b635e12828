package inference

import "slices"

// mixed marks a slot whose keys and values come from several models.
const mixed int64 = -2

// slots says what the decoder's slots hold. A prompt that goes on where a slot ends, as the next turn of a conversation
// does, takes that slot and only its new tokens are computed; as equal tokens under an equal model have equal keys and
// values, bit for bit, it makes no difference to what is sampled.
type slots struct {
	held []held
	uses uint64
}

type held struct {
	tokens []int32 // whose keys and values the slot holds, from position 0
	model  int64   // that computed them: served.id
	busy   bool
	used   uint64 // when it was taken last, in uses
}

func newSlots(n int) *slots { return &slots{held: make([]held, n)} }

// some reports whether a slot is free.
func (s *slots) some() bool {
	return slices.ContainsFunc(s.held, func(h held) bool { return !h.busy })
}

// take hands out a free slot and says how many tokens of the prompt it holds already, at most all but one: the slot that
// the prompt repeats as a whole, the longest of those; otherwise the one that has not been used for longest.
func (s *slots) take(prompt []int32, model int64) (slot, keep int, ok bool) {
	slot = -1
	oldest := -1
	for i := range s.held {
		h := &s.held[i]
		switch {
		case h.busy:
			continue
		case oldest < 0 || h.used < s.held[oldest].used:
			oldest = i
		}
		n := len(h.tokens)
		if h.model == model && n > keep && n <= len(prompt) && slices.Equal(h.tokens, prompt[:n]) {
			slot, keep = i, n
		}
	}
	if oldest < 0 {
		return 0, 0, false
	}
	if slot < 0 {
		slot = oldest
		if h := &s.held[slot]; h.model == model {
			keep = common(h.tokens, prompt)
		}
	}
	keep = min(keep, len(prompt)-1)
	h := &s.held[slot]
	s.uses++
	h.tokens, h.model, h.busy, h.used = h.tokens[:keep], model, true, s.uses
	return slot, keep, true
}

// extend says that a busy slot now holds more tokens, computed by a model.
func (s *slots) extend(slot int, tokens []int32, model int64) {
	h := &s.held[slot]
	if h.model != model {
		h.model = mixed
	}
	h.tokens = append(h.tokens, tokens...)
}

// free gives a slot back with what it holds.
func (s *slots) free(slot int) { s.held[slot].busy = false }

// common is the length of the longest common prefix.
func common(a, b []int32) int {
	n := 0
	for n < len(a) && n < len(b) && a[n] == b[n] {
		n++
	}
	return n
}
