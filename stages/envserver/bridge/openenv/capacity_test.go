package openenv

import (
	"encoding/json"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// crowd plays rollouts as an environment server does: no more at once than the environment has room for, and those that find
// none again.
type crowd struct {
	*testing.T
	e *OpenEnv

	mu            sync.Mutex
	todo, running int
	played, full  int
	failed        []error
}

func (c *crowd) rollout(takes time.Duration) {
	s, err := env.Begin(within(c.T, 30*time.Second), c.e, json.RawMessage(`{}`), 1)
	if err == nil {
		time.Sleep(takes) // the policy thinks
		_, err = s.Reply(c.Context(), env.Assistant("bye"))
		err = errors.Join(err, s.Close())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running--
	switch {
	case err == nil:
		c.played++
	case errors.Is(err, env.ErrFull):
		c.full++
		c.todo++
	default:
		c.failed = append(c.failed, err)
	}
}

// play plays them until a moment.
func (c *crowd) play(n int, takes time.Duration, until time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.todo += n
	for end := time.Now().Add(until); c.todo+c.running > 0 && time.Now().Before(end); {
		for room := c.e.Capacity(); c.todo > 0 && c.running < room; c.todo-- {
			c.running++
			go c.rollout(takes)
		}
		c.mu.Unlock()
		time.Sleep(100 * time.Millisecond)
		c.mu.Lock()
	}
}

// However few places the server has and however long an episode takes, no rollout fails for want of one, nearly none begins
// that has to wait, and all places are used.
func TestInvariant_NoneFailsForWantOfRoom(t *testing.T) {
	const takes = time.Minute // longer than one call may take
	for _, places := range []int{1, 3, 40} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{capacity: places}
			c := &crowd{T: t, e: f.open(t, nil)}
			const n = 120
			start := time.Now()
			c.play(n, takes, 24*time.Hour)
			rounds := (n + places - 1) / places
			if took := time.Since(start); took > time.Duration(rounds+1)*(takes+time.Second) {
				t.Errorf("%d places: %d rounds took %v", places, rounds, took)
			}
			_, most, refused, _ := f.counts()
			if c.played != n || len(c.failed) > 0 || most != places {
				t.Errorf("%d places: %d played, %d failed: %v; %d at once", places, c.played, len(c.failed), c.failed, most)
			}
			if refused == 0 || refused > places+1 || c.full > places {
				t.Errorf("%d places: %d sessions were refused, %d rollouts came back", places, refused, c.full)
			}
		})
	}
}

// A server that starts anew with fewer places, or more, is found out, and costs no rollout but those that it had.
func TestPlacesChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{capacity: 8}
		c := &crowd{T: t, e: f.open(t, nil)}
		for _, places := range []int{8, 2, 6} {
			f.mu.Lock()
			f.capacity, f.down = places, true
			f.mu.Unlock()
			time.AfterFunc(time.Second, func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.down = false
			})
			c.play(1000, 5*time.Second, 5*time.Minute)
			synctest.Wait()
			f.mu.Lock()
			f.most = 0
			f.mu.Unlock()
			c.play(0, 0, time.Minute)
			_, most, _, _ := f.counts()
			if got := c.e.Capacity(); got != places || most != places {
				t.Errorf("%d places: room for %d, and %d are used", places, got, most)
			}
		}
		c.todo = 0
		c.play(0, 0, 5*time.Minute)
		if len(c.failed) > 0 || c.running > 0 {
			t.Errorf("%d run, %v", c.running, c.failed)
		}
	})
}

// Places that others of the server's clients have are used as soon as they are free again, however long episodes take.
func TestOthersGiveTheirPlacesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{capacity: 3}
		c := &crowd{T: t, e: f.open(t, nil)}
		others := func(n int) {
			synctest.Wait()
			f.mu.Lock()
			defer f.mu.Unlock()
			f.active += n
		}
		const takes = 10 * time.Minute
		others(3)
		c.play(5, takes, 5*time.Minute)
		if _, most, _, _ := f.counts(); most > 1 || c.full == 0 {
			t.Errorf("%d at once, %d came back", most, c.full)
		}
		others(-1)
		c.play(0, takes, time.Minute)
		others(-2)
		c.play(0, takes, time.Minute)
		if _, most, _, _ := f.counts(); most != 3 || c.running < 3 {
			t.Errorf("%d at once, %d run", most, c.running)
		}
		c.play(0, takes, time.Hour)
		if c.played != 5 || len(c.failed) > 0 {
			t.Errorf("%d played, %v", c.played, c.failed)
		}
	})
}
