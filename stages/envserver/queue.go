package envserver

import (
	"slices"
	"time"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/fair"
)

// A queue is the tasks of one run and environment that wait, and how many of its rollouts may run at once. It is under the
// budget's mutex.
type queue struct {
	pool    *pool
	own     int    // limit of the configuration; 0 for none
	used    int    // slots
	key     string // of a room that other runs may share
	room    *room
	party   *fair.Party // of the room
	moved   time.Time   // when its shell moved last
	waiting [][]*job    // in order of arrival, by number of crashes
	wake    chan struct{}
}

// stir wakes the shell of the queue: it has something to do before its next tick.
func (q *queue) stir() {
	select {
	case q.wake <- struct{}{}:
	default: // it is woken already
	}
}

// wakes is where the shell of an environment is woken.
func (p *pool) wakes(env string) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue(env).wake
}

// queue is that of an environment, under the mutex.
func (p *pool) queue(env string) *queue {
	q := p.queues[env]
	if q == nil {
		q = &queue{pool: p, key: p.same[env], party: fair.NewParty(p.party.Share()), moved: p.now, waiting: make([][]*job, len(p.crashing)),
			wake: make(chan struct{}, 1)}
		q.room = p.rooms[q.key]
		if q.room == nil {
			q.room = &room{}
			if q.key != "" {
				p.rooms[q.key] = q.room
			}
		}
		q.room.queues = append(q.room.queues, q)
		p.queues[env] = q
	}
	return q
}

// limit is how many slots the environment's tasks may have together, of those that there are.
func (q *queue) limit(size int) int {
	if q.own > 0 {
		size = min(size, q.own)
	}
	return q.room.limit(size)
}

// push queues a job, before those that came later.
func (q *queue) push(j *job) {
	w := q.waiting[j.crashes]
	at, _ := slices.BinarySearchFunc(w, j.seq, func(other *job, seq int64) int { return int(other.seq - seq) })
	q.waiting[j.crashes] = slices.Insert(w, at, j)
}

// head is the oldest waiting job with a number of crashes.
func (q *queue) head(crashes int) *job {
	w := q.waiting[crashes]
	for len(w) > 0 && w[0].phase != waiting {
		w[0] = nil
		w = w[1:]
	}
	q.waiting[crashes] = w
	if len(w) == 0 {
		return nil
	}
	return w[0]
}

// next is the oldest job of a queue that may run, with the slots it would take; nil if there is none, or no room for it, or its
// shell stands still. One that is held back for its crashes lets others pass.
func (p *pool) next(q *queue) (*job, int) {
	if q.quiet() {
		return nil, 0
	}
	limit := q.limit(p.size)
	var next *job
	var slots int
	for crashes := range q.waiting {
		j := q.head(crashes)
		if j == nil || next != nil && next.seq < j.seq {
			continue
		}
		// A group for which there will never be room for all at once is played in parts.
		want := max(1, min(rollouts(j.task), limit))
		if n := p.crashing[crashes]; n > 0 && n+want > p.crashLimit(crashes) {
			continue
		}
		next, slots = j, want
	}
	if next == nil || q.used+slots > limit || q.room.used+slots > q.room.limit(p.size) {
		return nil, 0
	}
	return next, slots
}

// atMost sets the limit that the configuration has for an environment; 0 for none.
func (p *pool) atMost(env string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.queue(env).own = n
}

// asksRoom says that an environment will tell how much room it has. Until it has, to this run or to another, it has none.
func (p *pool) asksRoom(env string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.queue(env).room; !r.limited {
		r.limited, r.most = true, 0
	}
}

// hasRoom tells how many rollouts an environment can have at once. What runs beyond that runs on.
func (p *pool) hasRoom(env string, n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.queue(env).room
	more := n > r.most
	r.limited, r.most = true, max(n, 0)
	for _, q := range r.queues {
		if more {
			q.stir()
		}
	}
}

// concurrency is how many rollouts of an environment may run at once.
func (p *pool) concurrency(env string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.queue(env).limit(p.size)
}

// putBack lets a job for which its environment had no room wait again, in its old place. No more of the environment run than do
// now, until it has said again how much room there is. While the server stops it is one whose model is gone, or the like, which
// begins anew elsewhere.
func (p *pool) putBack(j *job) {
	p.mu.Lock()
	defer p.mu.Unlock()
	j.cancel(nil)
	p.release(j)
	j.queue.stir()
	p.rest()
	if !p.stopping {
		j.queue.room.most = min(j.queue.room.most, j.queue.room.used)
	} else if j.core != nil {
		p.rerun(j, rerunStopped)
	}
	if j.core == nil { // whoever has its partition now plays it
		j.phase = dropped
		p.forget(j)
		return
	}
	j.phase, j.start = waiting, -1
	j.relist() // as not started
	j.queue.push(j)
}

// rollouts is how many a task asks for.
func rollouts(t *schemas.Task) int {
	if t.RolloutIndex >= 0 {
		return 1
	}
	return t.GroupSize
}
