package inference

import (
	"slices"
	"sync"
)

// A stock is the memory of loaded versions, which several runs may share: the newest of each run, and beyond those so many that
// requests are pinned to, or were. Where there are too many the least recently used goes, whichever run's it is.
type stock struct {
	mu    sync.Mutex
	spare int // versions beyond one for each run
	runs  []*policies
	uses  uint64
}

func newStock(spare int) *stock { return &stock{spare: spare} }

// join puts the versions of a run, which has none yet, into a stock.
func (p *policies) join(s *stock) {
	p.stock = s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.runs = append(s.runs, p)
}

// leave takes those of a run out: nothing of it is asked for any more.
func (p *policies) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.runs = slices.DeleteFunc(p.runs, func(other *policies) bool { return other == p })
	p.trim()
}

// limit is how many versions there may be.
func (s *stock) limit() int { return s.spare + len(s.runs) }

// count is how many there are. The lock is held.
func (s *stock) count() (n int) {
	for _, p := range s.runs {
		n += len(p.loaded)
	}
	return n
}

// trim unloads versions while there are too many and some that can go. The lock is held.
func (s *stock) trim() {
	for s.count() > s.limit() && s.evict() {
	}
	for _, p := range s.runs {
		p.broadcast()
	}
}

// makeRoom reports whether one more version may be loaded, and unloads one where that is needed. The lock is held.
func (s *stock) makeRoom() bool {
	return s.count() < s.limit() || s.evict()
}

// evict unloads the least recently used version that is neither in use nor the one that serves its run. The lock is held.
func (s *stock) evict() bool {
	var of *policies
	victim := none
	for _, p := range s.runs {
		serving := p.serving()
		for v, r := range p.loaded {
			if r.users == 0 && v != serving && (of == nil || r.used < of.loaded[victim].used) {
				of, victim = p, v
			}
		}
	}
	if of == nil {
		return false
	}
	delete(of.loaded, victim)
	of.unload(victim)
	return true
}
