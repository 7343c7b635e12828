package verifiers

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// still is a worker that does nothing until it is to end.
func still() *worker {
	w := &worker{c: &client{ended: make(chan struct{})}, quit: make(chan struct{}), dead: make(chan struct{})}
	go func() {
		select {
		case <-w.quit:
			close(w.c.ended)
		case <-w.c.ended:
		}
		close(w.dead)
	}()
	return w
}

func die(w *worker, why error) {
	w.why = why
	close(w.c.ended)
}

func pooled(t *testing.T, least, most int, start func(context.Context) (*worker, error)) *pool {
	t.Helper()
	if start == nil {
		start = func(context.Context) (*worker, error) { return still(), nil }
	}
	return newPool(&pool{
		start: start, least: least, most: most, each: 10, rest: time.Minute, note: func(string, ...any) {},
	}, still())
}

func (p *pool) size() int {
	synctest.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.live)
}

func take(t *testing.T, p *pool, n int) (taken []*worker) {
	t.Helper()
	for range n {
		w, err := p.acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		taken = append(taken, w)
	}
	return taken
}

// An elastic pool hires at nine tenths of what it carries, up to most, and dismisses the idle one by one, down to least.
func TestElastic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pooled(t, 1, 3, nil)
		taken := take(t, p, 8)
		if n := p.size(); n != 1 {
			t.Errorf("%d workers for 8 rollouts", n)
		}
		taken = append(taken, take(t, p, 1)...)
		if n := p.size(); n != 2 {
			t.Errorf("%d workers for 9 rollouts", n)
		}
		taken = append(taken, take(t, p, 3)...)
		if a, b := p.live[0].active, p.live[1].active; a != 9 || b != 3 {
			t.Errorf("of 12 rollouts the older worker has %d and the newer %d", a, b)
		}
		for range 5 {
			p.release(p.live[0], true)
		}
		take(t, p, 5)
		if a, b := p.live[0].active, p.live[1].active; a != 9 || b != 3 {
			t.Errorf("of 12 rollouts the older worker has %d and the newer %d, where the older had room", a, b)
		}
		taken = append(taken, take(t, p, 37)...)
		if n := p.size(); n != 3 {
			t.Errorf("%d workers for 49 rollouts", n)
		}
		for _, w := range p.live {
			if w.active < 16 || w.active > 17 {
				t.Errorf("a worker has %d of 49 rollouts", w.active)
			}
		}
		for i, w := range taken {
			if i != 0 {
				p.release(w, true)
			}
		}
		time.Sleep(59 * time.Second)
		if n := p.size(); n != 3 {
			t.Errorf("%d workers after less than their rest", n)
		}
		time.Sleep(time.Minute)
		if n := p.size(); n != 1 {
			t.Errorf("%d workers after their rest", n)
		}
		if p.live[0] != taken[0] {
			t.Error("the one with a rollout went")
		}
		p.release(taken[0], true)
		time.Sleep(time.Hour)
		if n := p.size(); n != 1 {
			t.Errorf("%d workers with nothing to do", n)
		}
		p.close()
	})
}

// A static pool has all its workers from the start, and gets another for one that has died.
func TestStatic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pooled(t, 3, 3, nil)
		if n := p.size(); n != 3 {
			t.Fatalf("%d workers", n)
		}
		taken := take(t, p, 6)
		for _, w := range p.live {
			if w.active != 2 {
				t.Errorf("a worker has %d of 6 rollouts", w.active)
			}
		}
		die(taken[0], errors.New("killed"))
		synctest.Wait()
		p.release(taken[0], false)
		time.Sleep(2 * firstPause)
		if n := p.size(); n != 3 {
			t.Errorf("%d workers after a death", n)
		}
		time.Sleep(time.Hour)
		if n := p.size(); n != 3 {
			t.Errorf("%d workers with nothing to do", n)
		}
		p.close()
	})
}

// A worker that cannot be started is tried with longer and longer pauses; who waits hears why.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries, heals := 0, false
		p := pooled(t, 1, 1, func(context.Context) (*worker, error) {
			if tries++; heals {
				return still(), nil
			}
			return nil, errors.New("the module is gone")
		})
		die(take(t, p, 1)[0], errors.New("killed"))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := p.acquire(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the module is gone") {
			t.Errorf("error %v", err)
		}
		if tries < 6 || tries > 14 {
			t.Errorf("%d tries in a minute", tries)
		}
		heals = true
		w := take(t, p, 1)[0]
		p.release(w, true)
		p.close()
		if _, err := p.acquire(t.Context()); !errors.Is(err, errClosed) {
			t.Errorf("after the end: %v", err)
		}
	})
}

// Close does not wait for a start that takes long, but ends it.
func TestCloseWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := pooled(t, 2, 2, func(ctx context.Context) (*worker, error) {
			<-ctx.Done()
			return nil, ctx.Err()
		})
		synctest.Wait()
		p.close()
	})
}

// A worker that has had its fill goes as soon as it is idle and another is there; until then it serves on.
func TestFill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ready := make(chan struct{})
		p := pooled(t, 1, 1, func(context.Context) (*worker, error) {
			<-ready
			return still(), nil
		})
		p.mu.Lock()
		p.fill = 3
		p.mu.Unlock()
		first := take(t, p, 3)
		first = append(first, take(t, p, 1)...) // there is no other
		for _, w := range first[1:] {
			p.release(w, true)
		}
		close(ready)
		if n := p.size(); n != 2 {
			t.Errorf("%d workers: the old one with a rollout and the new one are 2", n)
		}
		if w := take(t, p, 1)[0]; w == first[0] {
			t.Error("the old one got another rollout")
		}
		p.release(first[0], true)
		if n := p.size(); n != 1 || p.live[0] == first[0] {
			t.Errorf("%d workers, or the old one has stayed", n)
		}
		p.close()
	})
}
