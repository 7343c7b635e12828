package python

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/stages/envserver/bridge/child"
)

// still is a process that does nothing.
func still() *process {
	return &process{gone: make(chan struct{}), dead: make(chan struct{}), out: child.NewOutput(child.NewRecord("", "", 1), 1, func() {})}
}

// A process that cannot be started again is tried with longer and longer pauses; who waits for it hears why.
func TestBackOff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, tries, heals := still(), 0, false
		second := still()
		p := newPool(first, make(chan struct{}), 1, 2, func() (*process, error) {
			if tries++; heals {
				return second, nil
			}
			return nil, errors.New("the module is gone")
		})
		if got, err := p.acquire(t.Context()); got != first || err != nil {
			t.Fatal(err)
		}
		first.why = errors.New("killed")
		close(first.dead)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if _, err := p.acquire(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "the module is gone") {
			t.Errorf("error %v", err)
		}
		if tries < 6 || tries > 12 {
			t.Errorf("%d tries in a minute", tries)
		}
		heals = true
		if got, err := p.acquire(t.Context()); got != second || err != nil {
			t.Errorf("after it is back: %v", err)
		}
		go func() {
			<-p.quit
			close(second.dead)
		}()
		p.close()
	})
}

// Another process starts when none is idle, and not more of them than may.
func TestGrows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := []*process{still()}
		p := newPool(all[0], make(chan struct{}), 3, 2, func() (*process, error) {
			all = append(all, still())
			return all[len(all)-1], nil
		})
		for range 6 {
			if _, err := p.acquire(t.Context()); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for _, l := range all {
			if len(all) != 3 || l.episodes != 2 {
				t.Errorf("%d processes, one with %d episodes", len(all), l.episodes)
			}
			go func() {
				<-p.quit
				close(l.dead)
			}()
		}
		p.close()
	})
}
