package judge

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(100, 120)
		begun := time.Now()
		var all sync.WaitGroup
		var last atomic.Int64
		for range 11 {
			all.Go(func() {
				if err := g.enter(t.Context()); err != nil {
					t.Error(err)
				}
				last.Store(max(last.Load(), int64(time.Since(begun))))
				g.leave()
			})
		}
		all.Wait()
		if took := time.Duration(last.Load()); took != 5*time.Second {
			t.Errorf("eleven requests at 120 a minute begin within %v, want 5s", took)
		}
		time.Sleep(time.Hour) // what was not used is not saved up
		begun = time.Now()
		for range 3 {
			if err := g.enter(t.Context()); err != nil {
				t.Error(err)
			}
			g.leave()
		}
		if took := time.Since(begun); took != time.Second {
			t.Errorf("three more begin within %v, want 1s", took)
		}
	})
}

func TestParallel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(3, 0)
		var now, most atomic.Int64
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if err := g.enter(t.Context()); err != nil {
					t.Error(err)
				}
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Second)
				now.Add(-1)
				g.leave()
			})
		}
		all.Wait()
		if most.Load() != 3 {
			t.Errorf("%d at once, want 3", most.Load())
		}
	})
}

// Who gives up waiting leaves the place to others.
func TestGivingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(1, 1)
		if err := g.enter(t.Context()); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("while another runs: %v", err)
		}
		g.leave()
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := g.enter(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("before its time: %v", err)
		}
		if len(g.slots) != 0 {
			t.Error("the place was kept")
		}
	})
}
