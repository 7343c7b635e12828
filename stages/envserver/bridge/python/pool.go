package python

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Pauses before another process is started where one could not be, or ended before it was of any use.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 10 * time.Second
)

// pool holds the processes of an environment and starts them as they are needed. It is safe for concurrent use.
type pool struct {
	start func() (*process, error)
	quit  chan struct{}  // closed when all processes are to end
	most  int            // processes
	each  int            // episodes of one
	all   sync.WaitGroup // goroutines that start or watch a process

	mu       sync.Mutex
	live     []*process
	starting int
	failures int       // one after the other
	after    time.Time // no process is started before
	last     error     // why there is none
	closed   bool
	changed  chan struct{} // closed when there may be room
}

func newPool(first *process, quit chan struct{}, most, each int, start func() (*process, error)) *pool {
	p := &pool{start: start, quit: quit, most: most, each: each, changed: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.add(first)
	return p
}

// acquire takes room for an episode in the process that has the fewest, and lets another one start if none is idle. It waits for
// room until ctx ends.
func (p *pool) acquire(ctx context.Context) (*process, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, errClosed
		}
		var best *process
		for _, l := range p.live {
			if l.alive() && l.episodes < p.each && (best == nil || l.episodes < best.episodes) {
				best = l
			}
		}
		pause := time.Until(p.after)
		if (best == nil || best.episodes > 0) && len(p.live)+p.starting < p.most && pause <= 0 {
			p.starting++
			p.all.Go(p.grow)
		}
		if best != nil {
			best.episodes++
			p.mu.Unlock()
			return best, nil
		}
		changed, last := p.changed, p.last
		p.mu.Unlock()
		var paused <-chan time.Time
		if pause > 0 {
			paused = time.After(pause)
		}
		select {
		case <-changed:
		case <-paused:
		case <-ctx.Done():
			if last == nil {
				last = fmt.Errorf("%w: %d processes have %d episodes each: raise processes or episodes", env.ErrFull, p.most, p.each)
			}
			return nil, fmt.Errorf("wait for a process with room: %w: %w", context.Cause(ctx), last)
		}
	}
}

var errClosed = errors.New("the environment is closed")

// grow starts a process.
func (p *pool) grow() {
	next, err := p.start()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starting--
	if err != nil {
		p.fail(err)
	} else {
		p.add(next)
	}
	p.news()
}

// add takes a process in and watches it.
func (p *pool) add(next *process) {
	p.live = append(p.live, next)
	p.all.Go(func() {
		for over := false; !over; {
			select {
			case <-next.gone:
				p.mu.Lock()
				next.episodes--
				p.last, p.failures = nil, 0
			case <-next.dead:
				over = true
				p.mu.Lock()
				p.live = slices.DeleteFunc(p.live, func(l *process) bool { return l == next })
				if !p.closed {
					p.fail(next.why)
					next.out.Note("--- process %d had %d episodes: %v", next.pid, next.episodes, next.why)
				}
			}
			p.news()
			p.mu.Unlock()
		}
	})
}

// fail makes starts wait: longer each time, unless an episode has ended well in between.
func (p *pool) fail(err error) {
	p.after = time.Now().Add(min(firstPause<<min(p.failures, 10), longestPause))
	p.failures++
	p.last = err
}

func (p *pool) news() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// close ends all processes, whatever they are at, and waits for that.
func (p *pool) close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.quit)
		p.news()
	}
	p.mu.Unlock()
	p.all.Wait()
}
