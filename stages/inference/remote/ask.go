package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prl-project/prl/stages/inference"
)

// ask has a server answer: the one of the conversation, or another where that cannot. A request that a server failed goes
// to others, at most Attempts times in all; what is wrong with the request itself is final. pin, if there is one, is the
// version that must be asked.
func (f *fleet) ask(ctx context.Context, key uint64, pin *int64, call func(ctx context.Context, s *server) error) error {
	var tried []*server
	var last error
	for range f.cfg.Attempts {
		s, err := f.take(ctx, key, pin, &tried)
		if err != nil {
			return unavailable(ctx, errors.Join(err, last))
		}
		inference.Begun(ctx, s.url)
		err = s.do(ctx, call)
		f.give(s)
		var wrong *inference.Error
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.As(err, &wrong):
			return err
		}
		last = fmt.Errorf("%s: %w", s.url, err)
		var same unusable
		if errors.As(err, &same) {
			return &inference.Error{Status: http.StatusBadGateway, Code: inference.CodeUnusable, Message: "the answer of " + s.url + " is of no use", Cause: err}
		}
		f.metrics.retried.Inc()
		f.log.Warn("a request goes to another server", "server", s.url, "error", err)
		tried = append(tried, s)
	}
	return unavailable(ctx, fmt.Errorf("given up after %d attempts: %w", f.cfg.Attempts, last))
}

// unavailable is the error of a request that no server answered.
func unavailable(ctx context.Context, err error) error {
	var own *inference.Error
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.As(err, &own) {
		return own
	}
	return &inference.Error{Status: http.StatusServiceUnavailable, Code: inference.CodeOverloaded, Message: "the policy cannot be asked at the moment", Cause: err}
}

// take waits for a server that holds the goal and counts the request to it: one that was not tried, or if there is none, any.
// Patience does not end while servers are given the goal: that has limits of its own.
func (f *fleet) take(ctx context.Context, key uint64, pin *int64, tried *[]*server) (*server, error) {
	for {
		s, err := f.takeSoon(ctx, key, pin, tried)
		if !errors.As(err, new(late)) || !f.swaps() {
			return s, err
		}
	}
}

// takeSoon is take within Patience.
func (f *fleet) takeSoon(ctx context.Context, key uint64, pin *int64, tried *[]*server) (*server, error) {
	var s *server
	err := f.wait(ctx, time.Duration(f.cfg.Patience), func() (bool, error) {
		if pin != nil && f.goal != nil && f.goal.version > *pin {
			return false, gone(*pin, f.goal.version)
		}
		if pin != nil && (f.goal == nil || f.goal.version != *pin) {
			return false, nil
		}
		free := f.ready(*tried)
		if len(free) == 0 {
			if free = f.ready(nil); len(free) > 0 {
				*tried = nil
			}
		}
		if len(free) == 0 {
			return false, nil
		}
		s = choose(key, free, f.cfg.Overload)
		s.running++
		return true, nil
	})
	return s, err
}

// gone is the error of a request that is pinned to a version that is not held any more.
func gone(pin, newest int64) error {
	return &inference.Error{Status: http.StatusNotFound, Code: inference.CodeNoVersion, Message: fmt.Sprintf(
		"policy version %d was asked for, but the servers hold one at a time, which is %d (inference.remote.eval_urls are for others)", pin, newest)}
}

// give counts a request out again.
func (f *fleet) give(s *server) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.running--; s.running == 0 {
		f.broadcast()
	}
}
