package inference

import (
	"context"
	"slices"

	"github.com/prl-project/prl/stages/internal/fair"
)

// queued is what waits in a line: for a slot, or for the loop that answers probes.
type queued interface {
	owner() *native
	waits() context.Context
}

// A queueOf has a line for each run. Whose turn it is is decided by the tokens that the runs were served so far, in parts of
// their shares (package fair), and never by how many requests they have: so of two runs of one share, the one that asks for
// long answers is served as many tokens as the one that asks for ten times as many short ones. A run that asks for nothing
// leaves the others all, and has nothing saved up for it. Within a run the first to come is the first to be served.
//
// Everything of it is under the engine's mutex, but for charges, which are the loop's that takes.
type queueOf[T queued] struct {
	all      []*lineOf[T]
	division fair.Division
}

type lineOf[T queued] struct {
	of      *native
	party   *fair.Party
	waiting []T // in the order they came
}

type (
	lines  struct{ queueOf[*sequence] }
	line   = lineOf[*sequence]
	probes struct{ queueOf[*probing] }
)

func (s *sequence) owner() *native         { return s.served.of }
func (s *sequence) waits() context.Context { return s.ctx }
func (p *probing) owner() *native          { return p.model.of }
func (p *probing) waits() context.Context  { return p.ctx }

// of is the line of a run.
func (q *queueOf[T]) of(run *native) *lineOf[T] {
	for _, l := range q.all {
		if l.of == run {
			return l
		}
	}
	l := &lineOf[T]{of: run, party: fair.NewParty(run.share)}
	q.all = append(q.all, l)
	return l
}

func (q *queueOf[T]) push(v T) {
	l := q.of(v.owner())
	l.waiting = append(l.waiting, v)
}

// turn is the line that is next; nil if nothing waits. Those that nobody waits for any more go.
func (q *queueOf[T]) turn() *lineOf[T] {
	var waiting []*fair.Party
	var only *lineOf[T]
	for _, l := range q.all {
		for len(l.waiting) > 0 && l.waiting[0].waits().Err() != nil {
			l.waiting = l.waiting[1:]
		}
		if l.party.Share() != l.of.share {
			l.party.SetShare(l.of.share)
		}
		if len(l.waiting) > 0 {
			waiting, only = append(waiting, l.party), l
		}
	}
	next := q.division.Next(waiting)
	if len(waiting) < 2 {
		return only
	}
	for _, l := range q.all {
		if l.party == next {
			return l
		}
	}
	return nil
}

// take takes what is next; the zero value if nothing waits.
func (q *queueOf[T]) take() (v T) {
	l := q.turn()
	if l == nil {
		return v
	}
	v, l.waiting = l.waiting[0], l.waiting[1:]
	return v
}

// take also tells the sequence by which line it came.
func (q *lines) take() *sequence {
	s := q.queueOf.take()
	if s != nil {
		s.line = q.of(s.owner())
	}
	return s
}

// charge notes that a run was served tokens.
func (q *queueOf[T]) charge(run *native, tokens int) { q.of(run).party.Charge(tokens) }

// first is one of those that wait first; the zero value if nothing does.
func (q *queueOf[T]) first() (v T) {
	for _, l := range q.all {
		if len(l.waiting) > 0 {
			return l.waiting[0]
		}
	}
	return v
}

// drop lets those go that gone says so of.
func (q *queueOf[T]) drop(gone func(T) bool) {
	for _, l := range q.all {
		l.waiting = slices.DeleteFunc(l.waiting, gone)
	}
}

// leave forgets the line of a run.
func (q *queueOf[T]) leave(run *native) {
	q.all = slices.DeleteFunc(q.all, func(l *lineOf[T]) bool { return l.of == run })
}
