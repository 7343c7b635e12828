package remote

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/prl-project/prl/stages/inference"
)

// state is what a server is good for.
type state int

const (
	down    state = iota // requests are elsewhere
	busy                 // it gets the weights of the goal; what runs there may go on
	doubted              // it gets no more requests until it has been looked at; what runs there goes on
	ready                // it holds the goal
)

// server is one server and what is known of it. One goroutine leads it; requests use it beside that.
type server struct {
	fleet  *fleet
	url    string
	client *client
	doubt  chan struct{} // capacity 1: a request failed in a way that makes one look

	said     string // what was wrong, as it was logged last
	sure     bool   // its log-probabilities were found to be those after temperature, since it came up
	failures int    // looks in a row

	// Under the fleet's lock:
	state   state
	why     error  // it cannot answer; nil from when it can until it falls, also while it is given another goal
	holds   target // what it was given; another one than the goal where the goal has changed
	running int    // requests
	longest int    // tokens of a sequence; 0 before it is known
	up      context.Context
	lose    context.CancelCauseFunc // ends the requests there
}

// lead keeps the server at the goal until ctx ends.
func (s *server) lead(ctx context.Context) {
	defer s.fall(errStopping)
	for ctx.Err() == nil {
		f := s.fleet
		f.mu.Lock()
		goal, changed, holds := f.goal, f.changed, s.holds
		is := s.state
		f.mu.Unlock()
		switch {
		case goal == nil:
			select {
			case <-changed:
			case <-ctx.Done():
			}
			continue
		case (is == ready || is == doubted) && holds == *goal:
			if s.look(ctx, *goal, is == doubted) {
				continue
			}
		default:
			s.take(ctx, *goal)
		}
		s.rest(ctx, *goal)
	}
}

// rest waits for the next look, or less where there is a reason.
func (s *server) rest(ctx context.Context, goal target) {
	t := time.NewTimer(time.Duration(s.fleet.cfg.HealthInterval))
	defer t.Stop()
	for {
		s.fleet.mu.Lock()
		next, changed := s.fleet.goal, s.fleet.changed
		s.fleet.mu.Unlock()
		if next == nil || *next != goal {
			return
		}
		select {
		case <-changed:
		case <-s.doubt:
			return
		case <-t.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// look asks a server that holds the goal whether it still does, and says whether it is well and does not.
func (s *server) look(ctx context.Context, goal target, doubted bool) (lost bool) {
	err := s.healthy(ctx)
	var label string
	if err == nil && !s.fleet.fixed {
		label, err = s.label(ctx)
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		s.failures++
		s.fleet.log.Warn("a server does not look well", "server", s.url, "failures", s.failures, "error", err)
		if doubted || s.failures >= s.fleet.cfg.HealthFailures {
			s.fall(err)
		}
	case label != goal.label:
		s.fall(fmt.Errorf("%w: %q instead of %q", errLabel, label, goal.label))
		return true
	default:
		s.failures = 0
		if doubted {
			s.set(ready)
		}
	}
	return false
}

func (s *server) healthy(ctx context.Context) error {
	ctx, cancel := s.brief(ctx)
	defer cancel()
	return s.fleet.make.health(ctx, s.client)
}

func (s *server) label(ctx context.Context) (string, error) {
	ctx, cancel := s.brief(ctx)
	defer cancel()
	return s.fleet.make.label(ctx, s.client)
}

// brief bounds a call that does no work.
func (s *server) brief(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := time.Duration(s.fleet.cfg.HealthTimeout)
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("no reply within %v", limit))
}

// take makes the server hold the goal.
func (s *server) take(ctx context.Context, goal target) {
	begun := time.Now()
	err := s.give(ctx, goal)
	var status *statusError
	if errors.As(err, &status) && (status.status == http.StatusUnauthorized || status.status == http.StatusForbidden) {
		err = misstarted{fmt.Errorf("%w (inference.remote.token)", err)}
	}
	switch {
	case ctx.Err() != nil:
	case err != nil:
		if err.Error() != s.said { // it is tried again and again
			s.said = err.Error()
			s.fleet.log.Error("a server cannot be used", "server", s.url, "version", goal.version, "error", err)
		}
		s.fall(err)
	default:
		s.said = ""
		s.fleet.metrics.swapped.Observe(time.Since(begun).Seconds())
		s.fleet.log.Info("a server holds the policy", "server", s.url, "version", goal.version, "took", time.Since(begun))
	}
}

// give loads the goal, unless the server has it already, and sees to it that it can be used.
func (s *server) give(ctx context.Context, goal target) error {
	f := s.fleet
	if !s.rise() {
		if err := s.healthy(ctx); err != nil {
			return err
		}
	}
	longest, err := s.askLongest(ctx)
	if err != nil {
		return err
	}
	if !f.fixed {
		if err := s.load(ctx, goal); err != nil {
			return err
		}
	}
	if !s.sure && !f.fixed {
		sure, err := checkLogprobs(ctx, s)
		if err != nil {
			return err
		}
		s.sure = sure
	}
	s.failures = 0
	f.mu.Lock()
	defer f.mu.Unlock()
	s.state, s.why, s.holds, s.longest = ready, nil, goal, longest
	f.metrics.ready.Inc()
	f.broadcast()
	return nil
}

func (s *server) askLongest(ctx context.Context) (int, error) {
	ctx, cancel := s.brief(ctx)
	defer cancel()
	return s.fleet.make.longest(ctx, s.client)
}

// rise stops new requests and lets those that run go on. It says whether the server was in use.
func (s *server) rise() (used bool) {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	used = s.state == ready
	if used {
		f.metrics.ready.Dec()
	}
	if s.up == nil {
		s.up, s.lose = context.WithCancelCause(context.Background())
	}
	s.state = busy
	f.broadcast()
	return used
}

// fall takes the server out: its requests go elsewhere. Whatever it held, it is asked again when it is back.
func (s *server) fall(why error) {
	s.sure, s.failures = false, 0
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	if s.state == ready {
		f.metrics.ready.Dec()
	}
	s.state, s.why, s.holds = down, why, target{}
	if s.up != nil {
		s.lose(&fallen{why})
		s.up, s.lose = nil, nil
	}
	f.broadcast()
}

// fallen ends the requests at a server that was taken out.
type fallen struct{ why error }

func (e *fallen) Error() string { return "the server was taken out: " + e.why.Error() }

// Unwrap gives the reason.
func (e *fallen) Unwrap() error { return e.why }

// set changes between ready and doubted.
func (s *server) set(to state) {
	f := s.fleet
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case s.state == ready && to == doubted:
		f.metrics.ready.Dec()
	case s.state == doubted && to == ready:
		f.metrics.ready.Inc()
	default:
		return
	}
	s.state = to
	f.broadcast()
}

// do runs a request at the server, for as long as that is up.
func (s *server) do(ctx context.Context, call func(ctx context.Context, s *server) error) error {
	s.fleet.mu.Lock()
	up := s.up
	s.fleet.mu.Unlock()
	if up == nil {
		return errors.New("the server was taken out")
	}
	asked, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(up, func() { cancel(context.Cause(up)) })()
	err := call(asked, s)
	if err == nil || ctx.Err() != nil {
		return err
	}
	if cause := context.Cause(up); cause != nil {
		return cause
	}
	var status *statusError
	switch {
	case errors.As(err, &status) && status.status < http.StatusInternalServerError:
		return refused(status)
	case errors.Is(err, errAborted), errors.As(err, new(unusable)), errors.As(err, new(*inference.Error)):
		return err
	}
	s.set(doubted)
	select {
	case s.doubt <- struct{}{}:
	default:
	}
	return err
}

// refused tells what is wrong with a request from what is wrong with the server, which another one may not have.
func refused(e *statusError) error {
	switch e.status {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return &inference.Error{Status: http.StatusBadRequest, Code: inference.CodeInvalid, Message: e.message}
	}
	return e
}
