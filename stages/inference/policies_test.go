package inference

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/schemas"
)

// shelf records what is loaded.
type shelf struct {
	loads  []int64
	inside []int64
	fail   error
}

func (s *shelf) load(_ context.Context, p *schemas.PolicyVersion) error {
	if s.fail != nil {
		return s.fail
	}
	s.loads, s.inside = append(s.loads, p.Version), append(s.inside, p.Version)
	return nil
}

func (s *shelf) unload(v int64) {
	s.inside = slices.DeleteFunc(s.inside, func(x int64) bool { return x == v })
}

func testPolicies(limit int) (*policies, *shelf) {
	s := &shelf{}
	return newPolicies(limit, time.Minute, s.load, s.unload), s
}

func versions(from, to int64) (list []*schemas.PolicyVersion) {
	for v := from; v <= to; v++ {
		list = append(list, &schemas.PolicyVersion{Version: v})
	}
	return list
}

func mustUse(t *testing.T, p *policies, version int64) (release func()) {
	t.Helper()
	release, err := p.use(t.Context(), version)
	if err != nil {
		t.Fatal(err)
	}
	return release
}

func TestInvariant_PinIsHeldUntilPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := testPolicies(4)
		p.publish(versions(0, 1)...)
		served := false
		go func() {
			mustUse(t, p, 3)()
			served = true
		}()
		synctest.Wait()
		p.publish(versions(2, 2)...)
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if served {
			t.Fatal("served before its record")
		}
		p.publish(versions(3, 3)...)
		synctest.Wait()
		if !served || !slices.Equal(s.loads, []int64{3}) {
			t.Fatalf("served %v, loaded %v", served, s.loads)
		}
	})
}

func TestHoldHasADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, _ := testPolicies(4)
		p.publish(versions(0, 0)...)
		begin := time.Now()
		_, err := p.use(t.Context(), 1)
		var e *Error
		if !errors.As(err, &e) || e.Code != CodeHeldTooLong || time.Since(begin) != time.Minute {
			t.Errorf("got %v after %v", err, time.Since(begin))
		}
		if !Retryable(err) {
			t.Error("it may come later, but the error is final")
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := p.use(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want the caller's deadline", err)
		}
	})
}

func TestPinOnAVersionThatWillNeverCome(t *testing.T) {
	p, _ := testPolicies(4)
	p.publish(versions(2, 3)...)
	var e *Error
	if _, err := p.use(t.Context(), 1); !errors.As(err, &e) || e.Code != CodeNoVersion || Retryable(err) {
		t.Errorf("got %v", err)
	}
}

func TestLeastRecentlyUsedGoes(t *testing.T) {
	p, s := testPolicies(3)
	p.publish(versions(0, 9)...)
	if _, err := p.serveNewest(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, v := range []int64{1, 2, 1, 3} {
		mustUse(t, p, v)()
	}
	if want := []int64{9, 1, 3}; !slices.Equal(s.inside, want) {
		t.Errorf("loaded are %v, want %v", s.inside, want)
	}
	mustUse(t, p, 2)() // again
	if want := []int64{9, 1, 2, 3, 2}; !slices.Equal(s.loads, want) {
		t.Errorf("loads were %v, want %v", s.loads, want)
	}
}

func TestVersionInUseStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := testPolicies(2)
		p.publish(versions(0, 5)...)
		if _, err := p.serveNewest(t.Context()); err != nil {
			t.Fatal(err)
		}
		release := mustUse(t, p, 0)
		served := false
		go func() {
			mustUse(t, p, 1)()
			served = true
		}()
		synctest.Wait()
		if served || !slices.Equal(s.inside, []int64{5, 0}) {
			t.Fatalf("loaded are %v while 5 serves and 0 is in use", s.inside)
		}
		// A new version is loaded in any case: beyond the limit for as long as there is no room.
		p.publish(versions(6, 6)...)
		if _, err := p.serveNewest(t.Context()); err != nil {
			t.Fatal(err)
		}
		release()
		release() // a second time changes nothing
		synctest.Wait()
		if !served || len(s.inside) > 2 || !slices.Contains(s.inside, 6) {
			t.Fatalf("served %v, loaded are %v", served, s.inside)
		}
	})
}

func TestFailedLoadIsTriedAgain(t *testing.T) {
	p, s := testPolicies(2)
	p.publish(versions(0, 1)...)
	s.fail = errors.New("no such blob")
	if _, err := p.use(t.Context(), 0); !errors.Is(err, s.fail) || !Retryable(err) {
		t.Errorf("got %v", err)
	}
	s.fail = nil
	mustUse(t, p, 0)()
}

func TestOneLoadForManyRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, s := testPolicies(2)
		gate := make(chan struct{})
		p.load = func(ctx context.Context, v *schemas.PolicyVersion) error {
			<-gate
			return s.load(ctx, v)
		}
		p.publish(versions(0, 0)...)
		for range 10 {
			go func() { mustUse(t, p, 0)() }()
		}
		synctest.Wait()
		close(gate)
		synctest.Wait()
		if !slices.Equal(s.loads, []int64{0}) || p.loaded[0].users != 0 {
			t.Errorf("loads were %v", s.loads)
		}
	})
}
