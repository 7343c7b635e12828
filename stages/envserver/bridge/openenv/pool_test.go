package openenv

import (
	"encoding/json"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/coder/websocket"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Whatever the server has places for, all rollouts are played, and it never has more of them.
func TestInvariant_CapacityIsRespected(t *testing.T) {
	for _, test := range []struct{ capacity, episodes int }{{1, 1}, {3, 1}, {1, 4}, {3, 4}} {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{capacity: test.capacity}
			e := f.open(t, func(c *Config) { c.Episodes = test.episodes })
			var all errgroup.Group
			for range 24 {
				all.Go(func() error {
					s, err := env.Begin(within(t, time.Minute), e, json.RawMessage(`{}`), 1)
					if err != nil {
						return err
					}
					defer s.Close()
					time.Sleep(time.Second) // the policy thinks
					_, err = s.Reply(t.Context(), env.Assistant("bye"))
					return err
				})
			}
			if err := all.Wait(); err != nil {
				t.Fatal(err)
			}
			sessions, most, refused, _ := f.counts()
			if most != test.capacity || refused == 0 || refused > 24 {
				t.Errorf("%+v: %d at once, %d refused", test, most, refused)
			}
			if want := 24/test.episodes + refused + 1; sessions > want+test.capacity {
				t.Errorf("%+v: %d sessions, want about %d", test, sessions, want)
			}
		})
	}
}

// Episodes get their sessions in the order in which they came, also those that the server has refused in between.
func TestInvariant_InOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := (&fake{capacity: 2}).open(t, nil)
		var order []int
		var mu sync.Mutex
		var all sync.WaitGroup
		for n := range 12 {
			all.Go(func() {
				s := begin(t, e, `{}`)
				mu.Lock()
				order = append(order, n)
				mu.Unlock()
				time.Sleep(time.Duration(n+1) * time.Second)
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
			if n > 1 {
				time.Sleep(time.Millisecond)
			}
			synctest.Wait()
		}
		all.Wait()
		if !slices.IsSorted(order[2:]) || len(order) != 12 {
			t.Errorf("the order was %v", order)
		}
	})
}

// One that was refused is where it was in the queue, and one that gives up as its turn comes passes it on.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPool(nil, 1, 1, time.Second)
		p.taken = 1
		var order []int
		for _, number := range []int{3, 1, 4, 2} {
			go func() {
				if _, err := p.enter(t.Context(), number); err != nil {
					t.Error(err)
				}
				order = append(order, number)
			}()
			synctest.Wait()
		}
		for range 3 {
			p.vacate()
			synctest.Wait()
		}
		if err := p.giveUp(within(t, 0), &turn{number: 5}); err == nil {
			t.Error("no error")
		}
		synctest.Wait()
		if !slices.Equal(order, []int{1, 2, 3, 4}) || p.taken != 1 {
			t.Errorf("the order was %v, and %d are taken", order, p.taken)
		}
	})
}

// A wait for a turn ends with its context, says what to change, and leaves the place to others.
func TestWaitHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := (&fake{capacity: 1}).open(t, nil)
		first := begin(t, e, `{}`)
		for range 3 {
			_, err := env.Begin(within(t, time.Second), e, json.RawMessage(`{}`), 1)
			if err == nil || !strings.Contains(err.Error(), "max_concurrent_envs") || !strings.Contains(err.Error(), "deadline") {
				t.Fatalf("error %v", err)
			}
		}
		plays(t, first)
		plays(t, begin(t, e, `{}`))
	})
}

// Where others have the server's only place, it is asked for again and again.
func TestOthersHaveThePlaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{capacity: 2}
		e := f.open(t, nil)
		synctest.Wait()
		f.mu.Lock()
		f.active += 2
		f.mu.Unlock()
		time.AfterFunc(5*time.Second, func() {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.active -= 2
		})
		start := time.Now()
		plays(t, begin(t, e, `{}`))
		if waited := time.Since(start); waited < 5*time.Second || waited > 11*time.Second {
			t.Errorf("it took %v", waited)
		}
		if _, _, refused, _ := f.counts(); refused < 3 || refused > 20 {
			t.Errorf("%d refused", refused)
		}
		// The second place is found again in time.
		a := begin(t, e, `{}`)
		b, err := env.Begin(within(t, 2*regrow), e, json.RawMessage(`{}`), 1)
		if err != nil {
			t.Fatal(err)
		}
		plays(t, a)
		plays(t, b)
	})
}

// A server that is away is waited for, by all, without haste.
func TestServerIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		e := f.open(t, nil)
		away := func(is bool) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.down = is
		}
		away(true)
		if _, err := env.Begin(within(t, 3*time.Second), e, json.RawMessage(`{}`), 1); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("error %v", err)
		}
		time.AfterFunc(3*time.Second, func() { away(false) })
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { plays(t, begin(t, e, `{}`)) })
		}
		all.Wait()
	})
}

// A session is kept for the next episode, for a while; one that has broken meanwhile is replaced.
func TestSessionsAreUsedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hangUp := make(chan struct{})
		f := &fake{}
		f.serve = func(n int, c *websocket.Conn) {
			if n == 3 {
				go func() {
					<-hangUp
					_ = c.CloseNow() // or it has gone by itself
				}()
			}
			play(c)
		}
		e := f.open(t, func(c *Config) { c.Episodes = 4 })
		sessions := func() int {
			synctest.Wait()
			n, _, _, _ := f.counts()
			return n - 1 // that of the start
		}
		for range 5 {
			plays(t, begin(t, e, `{}`))
			time.Sleep(seconds(e.cfg.IdleS) - time.Second)
		}
		if n := sessions(); n != 2 {
			t.Fatalf("%d sessions for five episodes, want 2", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if _, _, _, active := f.counts(); active != 0 {
			t.Errorf("%d sessions after they were idle", active)
		}
		plays(t, begin(t, e, `{}`)) // the third, whose server goes
		close(hangUp)
		synctest.Wait()
		plays(t, begin(t, e, `{}`))
		if n := sessions(); n != 4 {
			t.Errorf("%d sessions, want 4", n)
		}
	})
}

// After Close nothing is left, and nothing begins.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{capacity: 1}
		e := f.open(t, nil)
		s := begin(t, e, `{}`)
		waits := make(chan error)
		go func() {
			_, err := env.Begin(t.Context(), e, json.RawMessage(`{}`), 1)
			waits <- err
		}()
		synctest.Wait()
		if err := e.Close(); err != nil {
			t.Fatal(err)
		}
		if err := <-waits; err == nil || !strings.Contains(err.Error(), errClosed.Error()) {
			t.Errorf("one that waited: %v", err)
		}
		if _, _, err := say(t, s, "x"); err == nil || !strings.Contains(err.Error(), errClosed.Error()) {
			t.Errorf("one that played: %v", err)
		}
		if _, err := env.Begin(t.Context(), e, json.RawMessage(`{}`), 1); err == nil {
			t.Error("an episode begins")
		}
		synctest.Wait()
		if _, _, _, active := f.counts(); active != 0 {
			t.Errorf("%d sessions are left", active)
		}
	})
}
