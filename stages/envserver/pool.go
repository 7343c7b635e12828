package envserver

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/fair"
	"github.com/prl-project/prl/stages/internal/idset"
)

// A job is one task on its way through the server. Its fields are under the pool's mutex, or never change.
type job struct {
	core    *core // that waits for it; nil when the partition has gone elsewhere
	player  *player
	task    *schemas.Task
	ref     pipeline.Ref
	from    tracing.Context // the span that its record names
	book    *book           // of its spans, where it is traced; of the goroutine that runs it
	crashes int             // ends without warning so far
	phase   phase
	queue   *queue
	slots   int   // that it has: one for each of its rollouts that may run at once
	seq     int64 // order of arrival in this process
	cancel  context.CancelCauseFunc
	// start is the lowest policy version among its sampled tokens so far; -1 before the first
	start int64
}

// A phase is how far a job has come. A job only moves forward, except that one for which there was no room waits again.
type phase int

const (
	waiting phase = iota // for a slot
	granted              // it has a slot and waits for a committed state that lists it as started
	running
	done    // its traces are acknowledged
	dropped // it will not be run here
)

// A pool is the tasks of one run that wait or run here. It has its slots from a budget, which other runs may share.
type pool struct {
	*budget
	party   *fair.Party // of the budget's slots
	same    map[string]string
	play    func(context.Context, *job) []*schemas.Trace // nil if ctx was cancelled with errStopped, the model went while the server stops, or there was no room
	publish func(context.Context, []*schemas.Trace) error
	acked   func(*job, []*schemas.Trace) // hears of traces that are written; nil for nobody
	plays   func(*schemas.Task) bool     // tasks it denies are never started
	rerun   func(j *job, why string)     // counts a task that is begun again
	ctx     context.Context              // of everything that runs
	stop    context.CancelCauseFunc

	// under the budget's mutex
	open     bool // tasks may start
	stopping bool
	queues   map[string]*queue // by environment
	jobs     map[*job]struct{}
	groups   map[groupKey][]*job // the jobs by group: each outcome asks for those of its own
	busy     int                 // jobs that run, or whose end their core has not reported
	changed  chan struct{}       // closed when busy falls
	newest   int64               // policy version
	decided  map[string]*idset.Set
	head     *job // that may have slots next, and how many; of grant
	slots    int
	wg       sync.WaitGroup
}

// newPool is a pool with a budget of its own.
func newPool(size, maxCrashes int) *pool {
	return newSeat(&Seat{budget: newBudget(size, maxCrashes), share: 1})
}

// newSeat is the pool of a run in a fleet.
func newSeat(s *Seat) *pool {
	p := &pool{
		budget: s.budget, party: fair.NewParty(s.share), same: s.same, queues: map[string]*queue{}, jobs: map[*job]struct{}{}, groups: map[groupKey][]*job{},
		changed: make(chan struct{}), newest: -1, decided: map[string]*idset.Set{}, rerun: func(*job, string) {},
		plays: func(*schemas.Task) bool { return true },
	}
	p.ctx, p.stop = context.WithCancelCause(context.Background())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pools = append(p.pools, p)
	return p
}

// A groupKey names a group of the run.
type groupKey struct {
	eval string
	id   int64
}

func groupOf(t *schemas.Task) groupKey { return groupKey{t.Eval, t.GroupID} }

// hold counts a job among those that wait or run, under the mutex.
func (p *pool) hold(j *job) {
	if _, held := p.jobs[j]; held {
		return
	}
	p.jobs[j] = struct{}{}
	group := groupOf(j.task)
	p.groups[group] = append(p.groups[group], j)
}

// forget is the end of hold, under the mutex.
func (p *pool) forget(j *job) {
	if _, held := p.jobs[j]; !held {
		return
	}
	delete(p.jobs, j)
	group := groupOf(j.task)
	rest := slices.DeleteFunc(p.groups[group], func(other *job) bool { return other == j })
	if p.groups[group] = rest; len(rest) == 0 {
		delete(p.groups, group)
	}
}

// crashLimit is how many slots tasks with a number of crashes may have together, so that a task that kills the process does
// not take many others with it again and again.
func (b *budget) crashLimit(crashes int) int {
	if crashes < 2 {
		return b.size
	}
	return max(1, b.size>>min(2*(crashes-1), 62))
}

// add queues a job, or ends it at once where there is nothing to run, under the mutex.
func (p *pool) add(j *job) {
	p.seq++
	j.seq, j.start = p.seq, -1
	switch {
	case p.stopping:
	case j.crashes >= len(p.crashing):
		p.conclude(j, &failure{schemas.ErrorCrashed, fmt.Errorf("its process ended without warning %d times", j.crashes)})
	case p.isDecided(j.task):
		p.conclude(j, errDecided)
	default:
		p.hold(j)
		j.queue.push(j)
	}
}

// launch runs a job that has been granted, under the mutex.
func (p *pool) launch(j *job) {
	ctx := p.begin(j)
	p.wg.Go(func() { p.end(j, p.play(ctx, j)) })
}

// conclude ends a job that is not played with the traces it gets instead, under the mutex. It needs no slot.
func (p *pool) conclude(j *job, why error) {
	p.begin(j)
	p.wg.Go(func() { p.end(j, j.player.refuse(j.task, why)) })
}

func (p *pool) begin(j *job) context.Context {
	ctx, cancel := context.WithCancelCause(p.ctx)
	j.phase, j.cancel = running, cancel
	p.hold(j)
	p.busy++
	return ctx
}

// end writes a job's traces and tells its core when they are acknowledged. If the server stops before, the task stays unfinished;
// without traces it waits again. Its slots are taken until then: traces that cannot be written hold up new ones, and a
// task that may kill the process starts only when those held back with it are through.
func (p *pool) end(j *job, traces []*schemas.Trace) {
	if traces == nil && p.ctx.Err() == nil {
		p.putBack(j)
		return
	}
	var err error = errStopped
	if traces != nil {
		if err = p.publish(p.ctx, traces); err == nil && p.acked != nil {
			p.acked(j, traces)
		}
	}
	pipeline.Crash("envserver.published")
	p.mu.Lock()
	defer p.mu.Unlock()
	j.cancel(nil)
	p.release(j)
	p.forget(j)
	switch {
	case err != nil:
		if j.core != nil {
			p.rerun(j, rerunStopped)
		}
		j.phase = dropped
		p.rest()
	case j.core == nil:
		j.phase = done
		p.rest()
	default:
		j.phase = done
		j.core.ended = append(j.core.ended, j)
	}
	j.queue.stir() // its slots are for another
}

// relist says that a job is to be listed otherwise than it is, under the mutex.
func (j *job) relist() {
	j.core.dirty = true
	j.queue.stir()
}

// rest says that a job needs nothing more, under the mutex.
func (p *pool) rest() {
	p.busy--
	close(p.changed)
	p.changed = make(chan struct{})
}

// stops reports whether nothing starts any more.
func (p *pool) stops() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stopping
}

// drain starts nothing more and waits until nothing runs, or ctx ends; then what still runs is cancelled, and writes no
// traces. What was about to start is at once listed as not started, so that a kill meanwhile does not count against it.
func (p *pool) drain(ctx context.Context) {
	p.mu.Lock()
	p.stopping = true
	for j := range p.jobs {
		if j.phase == granted {
			p.release(j)
			j.phase = dropped
			j.relist() // as not started
			p.forget(j)
		}
	}
	for p.busy > 0 && ctx.Err() == nil {
		changed := p.changed
		p.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
		}
		p.mu.Lock()
	}
	p.mu.Unlock()
	p.stop(errStopped)
	p.wg.Wait()
}
