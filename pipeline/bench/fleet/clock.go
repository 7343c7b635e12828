package fleet

import "container/heap"

// A clock runs what is due, in the order of its times; of equal times what was said first.
type clock struct {
	now   float64
	said  int
	queue events
}

type event struct {
	at   float64
	said int
	do   func()
}

func (c *clock) at(t float64, do func()) {
	c.said++
	heap.Push(&c.queue, event{max(t, c.now), c.said, do})
}

// run goes on until over, or until nothing is due any more.
func (c *clock) run(over func() bool) {
	for len(c.queue) > 0 && !over() {
		e := heap.Pop(&c.queue).(event)
		c.now = e.at
		e.do()
	}
}

type events []event

func (e events) Len() int { return len(e) }
func (e events) Less(i, k int) bool {
	return e[i].at < e[k].at || e[i].at == e[k].at && e[i].said < e[k].said
}
func (e events) Swap(i, k int) { e[i], e[k] = e[k], e[i] }
func (e *events) Push(v any)   { *e = append(*e, v.(event)) }
func (e *events) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// A pool is processes, brokers or cores that share work. Each does what it gets in the order in which it comes.
type pool struct {
	free []float64 // when each has done all it got
	busy float64   // seconds, of all together
}

func newPool(n int) *pool { return &pool{free: make([]float64, max(1, n))} }

// anyone gives work to whoever is free first.
const anyone = -1

// work gives work of some seconds to the one that a key falls to, and says when it is done.
func (p *pool) work(now float64, key int, seconds float64) (done float64) {
	i := 0
	if key != anyone {
		i = key % len(p.free)
	} else {
		for k, t := range p.free {
			if t < p.free[i] {
				i = k
			}
		}
	}
	p.free[i] = max(now, p.free[i]) + seconds
	p.busy += seconds
	return p.free[i]
}
