package judge

import (
	"context"
	"sync"
	"time"
)

// gate lets at most so many requests run at once, and begin no faster than one per interval. It is safe for concurrent use.
type gate struct {
	slots    chan struct{}
	interval time.Duration // 0 for as fast as can be
	mu       sync.Mutex
	next     time.Time // when the next request may begin
}

func newGate(parallel, perMinute int) *gate {
	g := &gate{slots: make(chan struct{}, parallel)}
	if perMinute > 0 {
		g.interval = time.Minute / time.Duration(perMinute)
	}
	return g
}

// enter waits for its turn; after it leave must be called. An error if the context ends first.
func (g *gate) enter(ctx context.Context) error {
	select {
	case g.slots <- struct{}{}:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := pause(ctx, g.turn()); err != nil {
		g.leave()
		return err
	}
	return nil
}

func (g *gate) leave() { <-g.slots }

// turn reserves the next beginning and is how long it is until then.
func (g *gate) turn() time.Duration {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := time.Now()
	if g.next.Before(now) {
		g.next = now
	}
	wait := g.next.Sub(now)
	g.next = g.next.Add(g.interval)
	return wait
}

// pause waits; an error if the context ends first.
func pause(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return context.Cause(ctx)
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
