package openenv

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

const (
	// Pauses before another session is opened where the server could not be reached, or others have all its places.
	firstPause   = 100 * time.Millisecond
	longestPause = 5 * time.Second
	// regrow is how long after the server was full one session more is tried.
	regrow = 10 * time.Second
)

var errClosed = errors.New("the environment is closed")

// pool holds the sessions of an environment, and opens as many as the server has places for. Episodes get them in the order in
// which they came. It is safe for concurrent use.
type pool struct {
	dial func(context.Context) (*session, error)
	most int           // sessions
	each int           // episodes of one
	keep time.Duration // for which an idle one is kept

	ending sync.WaitGroup // sessions that are told to end
	mu     sync.Mutex
	limit  int // what most has become: the server's places, as far as they are known
	told   int // what it said it has; 0 if it has said nothing
	grow   time.Time
	held   int                   // sessions that the server has taken
	proven int                   // as many as it has been seen to have at once
	taken  int                   // places: of sessions, and of those that are being opened or ended
	all    map[*session]struct{} // that were not told to end
	idle   []*session
	queue  []*turn // in order
	turns  int
	after  time.Time // nothing is opened before
	pause  time.Duration
	last   error // why
	closed bool
}

// turn is an episode that waits.
type turn struct {
	number int
	come   chan struct{} // closed when it has a place
	with   *session      // that is idle; nil if one is to be opened
}

func newPool(dial func(context.Context) (*session, error), most, each int, keep time.Duration) *pool {
	return &pool{dial: dial, most: most, limit: most, each: each, keep: keep, all: map[*session]struct{}{}}
}

// acquire takes a session for an episode, which begin begins; it waits for its turn until ctx ends. An idle session that turns
// out to be broken is replaced; where the server is full, or cannot be reached, another one is tried.
func (p *pool) acquire(ctx context.Context, begin func(*session) error) (*session, error) {
	p.mu.Lock()
	p.turns++
	number := p.turns
	p.mu.Unlock()
	s, err := p.enter(ctx, number)
	for err == nil {
		used := s != nil
		if !used {
			if s, err = p.open(ctx); err != nil {
				break
			}
		}
		if err = begin(s); err == nil {
			p.good(s)
			return s, nil
		}
		var said *refusal
		switch {
		case errors.As(err, &said) && said.Code == codeCapacity:
			p.drop(s, err)
			if s, err = nil, nil; p.full(said) {
				s, err = p.enter(ctx, number)
			}
		case used && errors.Is(err, errBroken) && ctx.Err() == nil:
			p.drop(s, err)
			s, err = nil, nil
		default:
			if errors.Is(err, errBroken) {
				p.bad(err)
			}
			p.release(s, false)
		}
	}
	return nil, err
}

// enter waits for a place, which may have an idle session.
func (p *pool) enter(ctx context.Context, number int) (*session, error) {
	mine := &turn{number: number, come: make(chan struct{})}
	p.mu.Lock()
	at, _ := slices.BinarySearchFunc(p.queue, number, func(t *turn, n int) int { return t.number - n })
	p.queue = slices.Insert(p.queue, at, mine)
	p.admit()
	p.mu.Unlock()
	tick := time.NewTicker(regrow / 10)
	defer tick.Stop()
	for {
		select {
		case <-mine.come:
			return mine.with, nil
		case <-tick.C:
			p.mu.Lock()
			p.admit()
			p.mu.Unlock()
		case <-ctx.Done():
			return nil, p.giveUp(ctx, mine)
		}
	}
}

// giveUp takes a turn out of the queue; if it has come meanwhile, what it has goes to the next.
func (p *pool) giveUp(ctx context.Context, mine *turn) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := slices.Index(p.queue, mine); k >= 0 {
		p.queue = slices.Delete(p.queue, k, k+1)
	} else if mine.with != nil {
		p.back(mine.with)
	} else {
		p.taken--
		p.admit()
	}
	err := fmt.Errorf("%w: wait for a session, of which there are %d (%s): %w", env.ErrFull, p.limit, p.whose(), context.Cause(ctx))
	if p.last != nil {
		err = fmt.Errorf("%w: %w", err, p.last)
	}
	return err
}

// whose says what limits the sessions.
func (p *pool) whose() string {
	if p.limit < p.most {
		return "the server has no more: raise its max_concurrent_envs, or play fewer at once"
	}
	return "raise the option sessions, or play fewer at once"
}

// admit gives places to those in front, as long as there are any.
func (p *pool) admit() {
	for len(p.queue) > 0 {
		mine := p.queue[0]
		if p.mayGrow() {
			p.limit++
			p.grow = time.Now().Add(regrow)
		}
		switch n := len(p.idle); {
		case n > 0:
			mine.with = p.idle[n-1]
			mine.with.reaper.Stop()
			p.idle = p.idle[:n-1]
		case p.taken < p.limit || p.closed:
			p.taken++
		default:
			return
		}
		p.queue = p.queue[1:]
		close(mine.come)
	}
}

// mayGrow says that it is time to try whether the server has another place.
func (p *pool) mayGrow() bool {
	return p.limit < p.most && (p.told == 0 || p.limit < p.told) && time.Now().After(p.grow)
}

// capacity is how many episodes it makes sense to have at once: as many as there are places for, and one more when it is time to
// try that. As long as nobody knows how many places there are, it is twice as many as there have been, so that few episodes begin
// that have to wait.
func (p *pool) capacity() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.limit
	if p.mayGrow() {
		n++
	}
	return min(n, 2*max(p.proven, 1))
}

// open opens a session in a place that one has, and goes on trying until ctx ends.
func (p *pool) open(ctx context.Context) (*session, error) {
	for {
		p.mu.Lock()
		pause, last, closed := time.Until(p.after), p.last, p.closed
		p.mu.Unlock()
		switch {
		case closed:
			p.vacate()
			return nil, errClosed
		case pause > 0 && sleep(ctx, pause):
			continue
		case ctx.Err() != nil:
			p.vacate()
			if last == nil {
				last = errors.New("open a session")
			}
			return nil, fmt.Errorf("%w: %w", last, context.Cause(ctx))
		}
		s, err := p.dial(ctx)
		if err != nil {
			p.bad(err)
			continue
		}
		p.mu.Lock()
		p.all[s] = struct{}{}
		closed = p.closed
		p.mu.Unlock()
		if closed {
			s.end(errClosed)
		}
		return s, nil
	}
}

// bad makes the next attempt wait, longer each time. What it may have known of the server's places may be so no more.
func (p *pool) bad(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.told = 0
	p.wait(err)
}

func (p *pool) wait(err error) {
	p.last = err
	if !time.Now().Before(p.after) { // others that fail meanwhile are the same failure
		p.pause = min(max(2*p.pause, firstPause), longestPause)
		p.after = time.Now().Add(p.pause)
	}
}

func (p *pool) good(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.episodes++; s.episodes == 1 {
		p.held++
		p.proven = max(p.proven, p.held)
	}
	p.pause, p.last, p.after = 0, nil, time.Time{}
}

// full learns that the server has no place for a session more. If others of ours have some, this place is given back, and the
// next that becomes free is waited for; else one waits in this place for what others do.
func (p *pool) full(said *refusal) (again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if said.Max > 0 {
		p.told = said.Max
	}
	p.grow = time.Now().Add(regrow)
	if p.taken > 1 {
		p.taken--
		p.limit = p.taken
		return true
	}
	p.limit = 1
	p.wait(said)
	return false
}

// release takes a session back whose episode is over. It is kept for the next one, if it is good for another, or told to end.
func (p *pool) release(s *session, again bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if again {
		p.back(s)
	} else {
		p.finish(s)
	}
}

func (p *pool) back(s *session) {
	if s.alive() && s.episodes < p.each && p.taken <= p.limit && !p.closed {
		s.reaper = time.AfterFunc(p.keep, func() { p.reap(s) })
		p.idle = append(p.idle, s)
		p.admit()
		return
	}
	p.finish(s)
}

// reap ends a session that nobody has wanted: it has a place that others may need.
func (p *pool) reap(s *session) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := slices.Index(p.idle, s); k >= 0 {
		p.idle = slices.Delete(p.idle, k, k+1)
		p.finish(s)
	}
}

// finish tells a session to end; its place is free when the server has let go of it.
func (p *pool) finish(s *session) {
	p.forget(s)
	if p.closed {
		s.end(errClosed)
		p.taken--
		return
	}
	p.ending.Go(func() {
		s.leave()
		p.vacate()
	})
}

// drop ends a session that is broken or was refused; its place stays taken.
func (p *pool) drop(s *session, why error) {
	s.end(why)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forget(s)
}

func (p *pool) forget(s *session) {
	delete(p.all, s)
	if s.episodes > 0 {
		p.held--
	}
}

// vacate gives a place back.
func (p *pool) vacate() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taken--
	p.admit()
}

// close ends all sessions, those with an episode too, and waits for that.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for s := range p.all {
		s.end(errClosed)
	}
	p.taken -= len(p.idle)
	p.idle = nil
	p.admit()
	p.mu.Unlock()
	p.ending.Wait()
}
