package verifiers

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// Pauses before another worker is started where one could not be, or ended before it was of any use.
const (
	firstPause   = 200 * time.Millisecond
	longestPause = 10 * time.Second
)

var errClosed = errors.New("the environment is closed")

// pool holds the workers of an environment. A static one has as many as least says, which is most; an elastic one starts at least
// and hires another when nine tenths of what all can carry is taken, and lets the newest that has been idle for a while go.
// Rollouts go to the oldest worker that carries less than that, so that newer ones fall idle when there is less to do; and to the
// one with the fewest where all carry more. A worker that has had its fill of rollouts is let go, too, as soon as another has taken
// its place: servers keep an HTTP client of every rollout. It is safe for concurrent use.
type pool struct {
	start       func(context.Context) (*worker, error)
	least, most int
	each        int           // rollouts that a worker carries
	fill        int           // rollouts after which a worker is let go; 0 for never
	rest        time.Duration // after which an idle worker goes
	note        func(format string, args ...any)

	all  sync.WaitGroup // goroutines of the pool
	stop context.CancelFunc
	ctx  context.Context

	mu       sync.Mutex
	live     []*worker // the oldest first
	starting int
	failures int       // one after the other
	after    time.Time // no worker is started before
	last     error     // why there is none
	closed   bool
	changed  chan struct{} // closed when there is news
}

func newPool(p *pool, first *worker) *pool {
	p.ctx, p.stop = context.WithCancel(context.Background())
	p.changed = make(chan struct{})
	p.mu.Lock()
	p.add(first)
	p.mu.Unlock()
	p.all.Go(p.tend)
	return p
}

// acquire takes a worker for a rollout. It waits for one until ctx ends.
func (p *pool) acquire(ctx context.Context) (*worker, error) {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return nil, errClosed
		}
		if w := p.choose(); w != nil {
			w.active++
			w.had++
			changed := p.wanted() > p.staying()+p.starting
			if changed {
				p.news() // to the tender
			}
			p.mu.Unlock()
			return w, nil
		}
		changed, last := p.changed, p.last
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			if last == nil {
				last = errors.New("none is ready yet")
			}
			return nil, fmt.Errorf("wait for a server: %w: %w", context.Cause(ctx), last)
		}
	}
}

func (p *pool) choose() *worker {
	var best *worker
	for _, w := range p.live {
		if !w.alive() {
			continue
		}
		if p.least < p.most && 10*w.active < 9*p.each && !p.full(w) {
			return w
		}
		if best == nil || p.full(best) && !p.full(w) || p.full(best) == p.full(w) && w.active < best.active {
			best = w
		}
	}
	return best
}

// full reports whether a worker has had its fill. It gets more only where there is no other.
func (p *pool) full(w *worker) bool { return p.fill > 0 && w.had >= p.fill }

// staying is how many workers have not had their fill.
func (p *pool) staying() (n int) {
	for _, w := range p.live {
		if !p.full(w) {
			n++
		}
	}
	return n
}

// release gives a worker back; well says that it has answered.
func (p *pool) release(w *worker, well bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	w.active--
	w.idle = time.Now()
	if well {
		p.last, p.failures = nil, 0
	}
	if p.full(w) {
		p.news() // to the tender
	}
}

// wanted is how many workers there should be.
func (p *pool) wanted() int {
	active := 0
	for _, w := range p.live {
		active += w.active
	}
	// Another at nine tenths of what n carry.
	n := (10*active)/(9*p.each) + 1
	return min(max(n, p.least), p.most)
}

// tend hires and dismisses until the pool is closed.
func (p *pool) tend() {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return
		}
		changed, wait := p.changed, p.rest/4
		pause := time.Until(p.after)
		for n := p.wanted() - p.staying() - p.starting; n > 0; n-- {
			if pause > 0 {
				wait = min(wait, pause)
				break
			}
			p.starting++
			p.all.Go(p.hire)
		}
		p.dismiss()
		p.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(wait):
		case <-p.ctx.Done():
		}
	}
}

// dismiss lets workers go that have had their fill and are idle, where others have taken their place, and the newest if it has
// rested long enough and is not needed.
func (p *pool) dismiss() {
	if p.staying() >= p.wanted() {
		p.live = slices.DeleteFunc(p.live, func(w *worker) bool {
			done := p.full(w) && w.active == 0
			if done {
				p.note("--- a worker has had %d rollouts, and another has taken its place", w.had)
				close(w.quit)
			}
			return done
		})
	}
	n := len(p.live)
	if n <= p.wanted() || p.starting > 0 {
		return
	}
	if w := p.live[n-1]; w.active == 0 && time.Since(w.idle) >= p.rest {
		p.live = p.live[:n-1]
		p.note("--- a worker has been idle for %v: %d are left", p.rest, n-1)
		close(w.quit)
		p.news()
	}
}

// hire starts a worker.
func (p *pool) hire() {
	w, err := p.start(p.ctx)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.starting--
	switch {
	case err != nil:
		p.fail(err)
	case p.closed:
		close(w.quit)
		p.all.Go(func() { <-w.dead })
	default:
		p.add(w)
	}
	p.news()
}

// add takes a worker in and sees to its end.
func (p *pool) add(w *worker) {
	w.idle = time.Now()
	p.live = append(p.live, w)
	p.all.Go(func() {
		<-w.dead
		p.mu.Lock()
		defer p.mu.Unlock()
		before := len(p.live)
		p.live = slices.DeleteFunc(p.live, func(l *worker) bool { return l == w })
		if !p.closed && len(p.live) < before {
			p.fail(w.why)
			p.note("--- a worker with %d rollouts has ended: %v", w.active, w.why)
			p.news()
		}
	})
}

// fail makes starts wait: longer each time, unless a rollout has ended well in between.
func (p *pool) fail(err error) {
	p.after = time.Now().Add(min(firstPause<<min(p.failures, 10), longestPause))
	p.failures++
	p.last = err
}

func (p *pool) news() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// close ends all workers and waits for that.
func (p *pool) close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		for _, w := range p.live {
			close(w.quit)
		}
		p.stop()
		p.news()
	}
	p.mu.Unlock()
	p.all.Wait()
}
