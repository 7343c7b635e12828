package envserver

import (
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/prl-project/prl/stages/inference"
)

// starts are when rollouts asked the model, each of which takes so long.
type starts struct {
	takes time.Duration
	mu    sync.Mutex
	at    []time.Time
}

func (s *starts) asked(inference.Request) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.at = append(s.at, time.Now())
	return s.takes
}

// A task that comes to a server with slots begins as soon as one transaction lists it, however long ago the last one was.
func TestBeginsAtOnce(t *testing.T) {
	const n = 20
	onField(t, usual, func(f *field) {
		h := enter(f, f.runtime("driver", nil), talk(1, 100, 100))
		all := &starts{takes: time.Second}
		s := f.serveTimed("one", false, 64, all.asked)
		h.write(f, h.records(f, h.tasks(1))) // so that it has joined
		h.traces(f, 1)
		var written []time.Time
		for i := range n {
			time.Sleep(time.Duration(237+i) * time.Millisecond) // at any time of its ticks
			written = append(written, time.Now())
			h.write(f, h.records(f, h.tasks(1)))
		}
		h.traces(f, 1+n)
		s.stop()
		var waits []time.Duration
		for i, at := range written {
			waits = append(waits, all.at[1+i].Sub(at))
		}
		f.Logf("tasks waited %v", waits)
		if most := slices.Max(waits); most > 2*usual.start { // one is committed, and then the next one
			f.Errorf("a task waited %v for its begin", most)
		}
	})
}

// A task for which there was no slot begins when one is free, and waits for no tick.
func TestBeginsWithAFreeSlot(t *testing.T) {
	const n = 6
	often := pace{start: 20 * time.Millisecond, commit: time.Minute, tick: time.Minute, heartbeat: 5 * time.Minute}
	onField(t, often, func(f *field) {
		h := enter(f, f.runtime("driver", nil), talk(1, 100, 100))
		all := &starts{takes: time.Second}
		h.write(f, h.records(f, h.tasks(n)))
		s := f.serveTimed("one", false, 1, all.asked)
		h.traces(f, n)
		s.stop()
		for i := 1; i < n; i++ {
			if wait := all.at[i].Sub(all.at[i-1]) - all.takes; wait > 2*often.start {
				f.Errorf("a free slot waited %v for the next task", wait)
			}
		}
	})
}
