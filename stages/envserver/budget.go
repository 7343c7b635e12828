package envserver

import (
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/internal/fair"
)

// silent is how long the shell of an environment may not move until its tasks get no slots, and those that were given it but
// have not begun lose them: it has no brokers, or its topics are gone, and others can use them.
const silent = 5 * time.Second

// A Fleet is what the environment servers of several runs in one process share: the slots, and the room of environments that
// are the same for all. Slots are divided by weighted max-min (package fair): while several runs have tasks that wait, each
// has slots in proportion to its share, to within one task; what one has no tasks for the others have, and it comes back as
// their rollouts end: none is stopped for another run's sake. The room of an environment that several runs use is divided
// likewise. A run's records are its own; what it has of a fleet is when its rollouts begin, and nothing else of them.
type Fleet struct{ *budget }

// NewFleet makes a fleet of as many slots, and with as many unclean ends of a task, as cfg says for all runs together.
func NewFleet(cfg Config) (*Fleet, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Fleet{newBudget(cfg.Concurrency, cfg.MaxCrashes)}, nil
}

// A Seat is a run's place in a fleet.
type Seat struct {
	budget *budget
	share  float64
	same   map[string]string
}

// Seat makes a place for a run: its share, above 0 and in any unit, and for each of its environments a text that is equal
// where two runs have the very same one, so that its room is shared; none, or an empty one, is an environment of the run's own.
func (f *Fleet) Seat(share float64, same map[string]string) (*Seat, error) {
	if !(share > 0) || math.IsInf(share, 1) {
		return nil, fmt.Errorf("a share of %v: above 0", share)
	}
	return &Seat{f.budget, share, same}, nil
}

// Running is how many slots are taken, by all runs together.
func (f *Fleet) Running() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.used
}

// A budget is the slots of a process and whose they are. Everything of its pools and queues is under its mutex.
type budget struct {
	size int

	mu       sync.Mutex
	used     int
	crashing []int // slots used, by number of crashes
	seq      int64
	now      time.Time // of the newest tick
	pools    []*pool   // of the runs
	rooms    map[string]*room
	division fair.Division
	waiting  []*fair.Party // of grant
}

func newBudget(size, maxCrashes int) *budget {
	return &budget{size: size, crashing: make([]int, maxCrashes), rooms: map[string]*room{}}
}

// A room is what an environment has place for, of one run or of several that have the same one.
type room struct {
	limited  bool // the environment says how much there is
	most     int  // that there is, as far as is known
	used     int  // slots
	queues   []*queue
	division fair.Division
	overdue  overdue
	turn     *queue // that may have the next slot of it; of grant
}

// limit is how many slots there are in it, of those that there are: where several runs have the environment, together no more
// than the largest of their own limits.
func (r *room) limit(size int) int {
	if r.limited {
		size = min(size, r.most)
	}
	largest := 0
	for _, q := range r.queues {
		if q.own <= 0 {
			return size
		}
		largest = max(largest, q.own)
	}
	return min(size, largest)
}

// grant gives free slots to jobs that may run, under the mutex: of the run whose turn it is its oldest one. One that is held
// back for its crashes, or for which its environment has no room, lets others pass; one for which there are too few slots does
// not.
func (b *budget) grant() {
	b.revoke()
	for {
		for _, r := range b.rooms {
			r.turn = nil
		}
		for _, p := range b.pools {
			p.head, p.slots = p.oldest()
		}
		for _, r := range b.rooms {
			r.choose(b.size)
		}
		b.waiting = b.waiting[:0]
		for _, p := range b.pools {
			if p.head != nil && !p.head.queue.mayHave() {
				p.head, p.slots = p.oldest() // of another environment
			}
			if p.head != nil {
				b.waiting = append(b.waiting, p.party)
			}
		}
		turn := b.division.Next(b.waiting)
		if turn == nil {
			return
		}
		for _, p := range b.pools {
			if p.party != turn {
				continue
			}
			if b.used+p.slots > b.size {
				return
			}
			p.take(p.head, p.slots)
		}
	}
}

// choose says which of the runs that share the room may have the next place in it, where it has none for all of those whose
// oldest job is for it. A run that has older ones elsewhere keeps nobody out, and a room that is no smaller than all slots
// needs no division of its own.
func (r *room) choose(size int) {
	limit := r.limit(size)
	if len(r.queues) < 2 || limit >= size {
		return
	}
	var waiting []*fair.Party
	wanted := r.used
	for _, q := range r.queues {
		if q.pool.head != nil && q.pool.head.queue == q {
			waiting = append(waiting, q.party)
			wanted += q.pool.slots
		}
	}
	if wanted <= limit {
		return
	}
	turn := r.division.Next(waiting)
	for _, q := range r.queues {
		if q.party == turn {
			r.turn = q
		}
	}
}

// mayHave reports whether no other run has the turn in the queue's room.
func (q *queue) mayHave() bool { return q.room.turn == nil || q.room.turn == q }

// starts reports whether tasks of the run may start.
func (p *pool) starts() bool { return p.open && !p.stopping }

// oldest is the oldest job of a run that may have slots now, and how many it wants.
func (p *pool) oldest() (oldest *job, slots int) {
	if !p.starts() {
		return nil, 0
	}
	for _, q := range p.queues {
		if !q.mayHave() {
			continue
		}
		if j, n := p.next(q); j != nil && (oldest == nil || j.seq < oldest.seq) {
			oldest, slots = j, n
		}
	}
	return oldest, slots
}

// take gives a waiting job its slots.
func (p *pool) take(j *job, slots int) {
	q := j.queue
	q.waiting[j.crashes] = q.waiting[j.crashes][1:]
	j.phase, j.slots = granted, slots
	j.relist()
	p.used += slots
	p.party.Take(slots)
	q.used += slots
	q.party.Take(slots)
	q.room.used += slots
	p.crashing[j.crashes] += slots
}

// release gives a job's slots back, under the mutex. A job that was not played has none.
func (p *pool) release(j *job) {
	if j.slots == 0 {
		return
	}
	p.used -= j.slots
	p.party.Give(j.slots)
	j.queue.used -= j.slots
	j.queue.party.Give(j.slots)
	j.queue.room.used -= j.slots
	p.crashing[j.crashes] -= j.slots
	j.slots = 0
}

// moves notes that the shell of a queue moves, now.
func (q *queue) moves(now time.Time) {
	q.moved = now
	if b := q.pool.budget; now.After(b.now) {
		b.now = now
	}
}

// quiet reports whether the shell of the queue has stood still while others moved.
func (q *queue) quiet() bool { return q.pool.now.Sub(q.moved) > silent }

// revoke takes slots back that shells which stand still were given, and have not begun to use.
func (b *budget) revoke() {
	for _, p := range b.pools {
		for _, q := range p.queues {
			if q.used == 0 || !q.quiet() {
				continue
			}
			for j := range p.jobs {
				if j.queue == q && j.phase == granted {
					p.release(j)
					j.phase = waiting
					j.relist() // as not started
					q.push(j)
				}
			}
		}
	}
}

// overdue counts the calls of an environment that hang, of all runs that have it.
func (p *pool) overdue(env string) *overdue {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &p.queue(env).room.overdue
}

// active reports whether the run has anything to play.
func (p *pool) active() bool { return len(p.jobs) > 0 }

// expected is how many rollouts of an environment the run may expect to run at once, at least one where there is room: its
// share of the slots and of the environment's room among the runs that have something to play. That is what the emitter
// hears, so that runs which share a fleet do not each count on all of it; what others leave it gets all the same.
func (p *pool) expected(env string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.queue(env)
	limit := q.limit(p.size)
	if len(p.pools) < 2 || limit < 1 {
		return limit
	}
	all := 0.0
	for _, other := range p.pools {
		if other == p || other.active() {
			all += other.party.Share()
		}
	}
	of := 0.0
	for _, other := range q.room.queues {
		if other == q || other.pool.active() {
			of += other.party.Share()
		}
	}
	share := p.party.Share()
	mine := min(float64(p.size)*share/all, float64(q.room.limit(p.size))*share/of)
	return max(1, min(limit, int(mine+0.5)))
}

// setShare changes the run's share from now on.
func (p *pool) setShare(share float64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.party.SetShare(share)
	for _, q := range p.queues {
		q.party.SetShare(share)
	}
}

// leave takes a run that has stopped out of the budget.
func (p *pool) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, other := range p.pools {
		if other == p {
			p.pools = append(p.pools[:i:i], p.pools[i+1:]...)
			break
		}
	}
	for _, q := range p.queues {
		for i, other := range q.room.queues {
			if other == q {
				q.room.queues = append(q.room.queues[:i:i], q.room.queues[i+1:]...)
				break
			}
		}
		if len(q.room.queues) == 0 && q.key != "" {
			delete(p.rooms, q.key)
		}
	}
}
