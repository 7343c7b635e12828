package bpe

// A pair of tokens that stand beside each other, and the token that a merge makes of them. Lower ranks go first.
type (
	pair  struct{ left, right int32 }
	merge struct{ rank, id int32 }
)

// A part is a token of a word that merges may still join with its neighbours; -1 is none. A part that has been joined with
// the one before it has no id (-1).
type part struct{ id, prev, next int32 }

// A candidate is a merge at a part. It is out of date if the pair there no longer makes its token: a part only grows, so
// then it is another text.
type candidate struct {
	order uint64 // rank, then position
	id    int32
}

// word appends the tokens of a word: of all merges that its tokens allow the one of the lowest rank, the first of several,
// is made, until there is none. A queue makes that n log n in the word's length.
func (w *work) word(text string) {
	t := w.t
	if id, ok := t.words[text]; ok {
		w.token(id)
		return
	}
	if len(text) == 1 {
		w.token(t.bytes[text[0]])
		return
	}
	w.parts, w.queue = w.parts[:0], w.queue[:0]
	for i := range len(text) {
		w.parts = append(w.parts, part{t.bytes[text[i]], int32(i) - 1, int32(i) + 1})
	}
	w.parts[len(text)-1].next = -1
	for i := range len(text) - 1 {
		w.propose(int32(i))
	}
	for len(w.queue) > 0 {
		c := w.pop()
		at := int32(uint32(c.order))
		left := &w.parts[at]
		if left.id < 0 || left.next < 0 {
			continue
		}
		right := &w.parts[left.next]
		if m, ok := t.merges[pair{left.id, right.id}]; !ok || m.id != c.id {
			continue
		}
		left.id, left.next, right.id = c.id, right.next, -1
		if left.next >= 0 {
			w.parts[left.next].prev = at
			w.propose(at)
		}
		if left.prev >= 0 {
			w.propose(left.prev)
		}
	}
	for at := int32(0); at >= 0; at = w.parts[at].next {
		w.token(w.parts[at].id)
	}
}

// propose queues the merge of the part at a position with the next one, if there is such a merge.
func (w *work) propose(at int32) {
	left := w.parts[at]
	if m, ok := w.t.merges[pair{left.id, w.parts[left.next].id}]; ok {
		w.push(candidate{uint64(m.rank)<<32 | uint64(at), m.id})
	}
}

func (w *work) push(c candidate) {
	q := append(w.queue, c)
	i := len(q) - 1
	for i > 0 {
		up := (i - 1) / 2
		if q[up].order <= c.order {
			break
		}
		q[i], i = q[up], up
	}
	q[i] = c
	w.queue = q
}

func (w *work) pop() candidate {
	q := w.queue
	top, last := q[0], q[len(q)-1]
	q = q[:len(q)-1]
	i := 0
	for {
		down := 2*i + 1
		if down >= len(q) {
			break
		}
		if down+1 < len(q) && q[down+1].order < q[down].order {
			down++
		}
		if q[down].order >= last.order {
			break
		}
		q[i], i = q[down], down
	}
	if len(q) > 0 {
		q[i] = last
	}
	w.queue = q
	return top
}
