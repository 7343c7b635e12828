package openenv

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/serve"
)

// A session is what a client has of the server: one episode after the other.
type session struct {
	id string
	// ctx ends with the session. What the client waits for ends with it.
	ctx context.Context
	end context.CancelCauseFunc

	turn    sync.Mutex // held by the request that is being answered; guards what follows
	episode *serve.Episode
	chosen  serve.Chosen
	state   state
	tools   []env.Tool

	// Of the sessions.
	used     time.Time // when a request was answered last
	busy     int       // requests that are being answered
	attached bool      // a WebSocket has joined a session that HTTP made
	leaving  bool      // it is closed when that WebSocket leaves
}

// state is what a client may know of a session at any time.
type state struct {
	EpisodeID *string `json:"episode_id"`
	StepCount int     `json:"step_count"`
	Episode   *played `json:"episode,omitempty"`
}

// played is which episode a session has.
type played struct {
	Env     string    `json:"env"`
	Version string    `json:"version"`
	Split   env.Split `json:"split"`
	Index   int       `json:"index"`
	Seed    int64     `json:"seed"`
	Done    bool      `json:"done"`
}

// Why a session ends.
var (
	errIdle     = errors.New("the session was not used for too long")
	errStopping = errors.New("the server stops")
	errClosed   = errors.New("the session was closed")
)

// original is an error in the words of the original server.
type original string

func (o original) Error() string { return string(o) }

// fullError says that there are as many sessions as there may be.
type fullError struct{ active, most int }

func (f *fullError) Error() string {
	return fmt.Sprintf("Server at capacity: %d/%d sessions active. Cannot accept new connections.", f.active, f.most)
}

// sessions holds those that there are.
type sessions struct {
	most int

	mu   sync.Mutex
	byID map[string]*session
}

func newSessions(most int) *sessions { return &sessions{most: most, byID: map[string]*session{}} }

// open makes a session. A fullError if there are too many.
func (s *sessions) open(ctx context.Context) (*session, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if len(s.byID) >= s.most {
		return nil, &fullError{len(s.byID), s.most}
	}
	session := &session{id: rand.Text(), used: time.Now()}
	session.ctx, session.end = context.WithCancelCause(context.WithoutCancel(ctx))
	s.byID[session.id] = session
	return session, nil
}

// close ends a session: its requests, then its episode, whose end is waited for. Its place is free before.
func (s *sessions) close(session *session, why error) {
	s.mu.Lock()
	delete(s.byID, session.id)
	s.mu.Unlock()
	session.end(why)
	session.turn.Lock()
	defer session.turn.Unlock()
	session.drop()
}

// begin counts a request of a session, so that it is not idle, until the returned function is called.
func (s *sessions) begin(session *session) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session.busy++
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		session.busy--
		session.used = time.Now()
	}
}

// find is the session of an id; nil if there is none.
func (s *sessions) find(id string) *session {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.byID[id]
}

// attach gives a session that HTTP made to a WebSocket, which calls leave when it goes.
func (s *sessions) attach(id string) (_ *session, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	session := s.byID[id]
	switch {
	case session == nil:
		return nil, nil, original("Unknown session_id: " + id)
	case session.attached:
		return nil, nil, original("Session " + id + " already has an attached WebSocket")
	}
	session.attached, session.used = true, time.Now()
	return session, func() {
		s.mu.Lock()
		session.attached = false
		leaving := session.leaving
		s.mu.Unlock()
		if leaving {
			s.close(session, errClosed)
		}
	}, nil
}

// closeByID closes a session that HTTP made; if a WebSocket has it, as soon as that goes, which waits tells.
func (s *sessions) closeByID(id string) (found, waits bool) {
	s.mu.Lock()
	session := s.byID[id]
	if session != nil && session.attached {
		session.leaving = true
		s.mu.Unlock()
		return true, true
	}
	s.mu.Unlock()
	if session == nil {
		return false, false
	}
	s.close(session, errClosed)
	return true, false
}

// reap closes idle sessions until ctx ends.
func (s *sessions) reap(ctx context.Context, idle time.Duration) {
	tick := time.NewTicker(max(min(idle/4, time.Minute), time.Millisecond))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			s.mu.Lock()
			var over []*session
			for _, session := range s.byID {
				if session.busy == 0 && now.Sub(session.used) > idle {
					over = append(over, session)
				}
			}
			s.mu.Unlock()
			for _, session := range over {
				s.close(session, errIdle)
			}
		}
	}
}

func (s *sessions) closeAll() {
	s.mu.Lock()
	var all []*session
	for _, session := range s.byID {
		all = append(all, session)
	}
	s.mu.Unlock()
	var closed sync.WaitGroup
	for _, session := range all {
		closed.Go(func() { s.close(session, errStopping) })
	}
	closed.Wait()
}
