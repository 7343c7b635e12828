package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/coder/websocket"
)

// closeWait is how long a server may take to let go of a session that was told to end.
const closeWait = 5 * time.Second

// session is one WebSocket, behind which the server has an environment. Its methods are for one goroutine at a time, except end.
type session struct {
	conn  *websocket.Conn
	limit time.Duration // for one answer
	inbox chan []byte   // of one: a server speaks when it is asked
	dead  chan struct{} // closed when nothing more comes in
	busy  atomic.Bool   // an answer is waited for, under its own deadline
	// pinged says that a sign of life is waited for.
	pinged atomic.Bool

	once sync.Once
	why  error // first reason to end it; read once dead

	// The pool's:
	episodes int         // that it has had
	reaper   *time.Timer // ends it if it stays idle
}

var (
	// errBroken is an error after which the session is of no use.
	errBroken  = errors.New("the session is broken")
	errUnasked = errors.New("the server speaks without being asked")
	// errHalfOpen is the end of one whose other end is gone without a word.
	errHalfOpen = errors.New("no sign of life (timeout_s): half-open")
)

// dial opens a session. It does not know yet whether the server has room: a server that is full says so in its first message.
func (s *server) dial(ctx context.Context) (*session, error) {
	header, err := s.header()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, s.limit)
	defer cancel()
	conn, response, err := websocket.Dial(ctx, s.url("/ws"), &websocket.DialOptions{HTTPHeader: header, HTTPClient: s.client})
	if err != nil {
		if response != nil && response.StatusCode != http.StatusSwitchingProtocols {
			return nil, fmt.Errorf("open a session: the server answered %s to the upgrade of /ws to a WebSocket", response.Status)
		}
		return nil, fmt.Errorf("open a session: %w", err)
	}
	conn.SetReadLimit(s.largest)
	in := &session{conn: conn, limit: s.limit, inbox: make(chan []byte, 1), dead: make(chan struct{})}
	go in.read()
	go in.watch(s.ping)
	return in, nil
}

// read takes in what the server sends, pings and its close included, until the session ends.
func (s *session) read() {
	defer close(s.dead)
	for {
		_, text, err := s.conn.Read(context.Background())
		if err != nil {
			if s.pinged.Load() && errors.Is(err, net.ErrClosed) { // by the ping, which cannot be sent
				s.end(errHalfOpen)
			}
			s.end(explain(err))
			return
		}
		select {
		case s.inbox <- text:
		default:
			s.end(errUnasked)
			return
		}
	}
}

func explain(err error) error {
	switch {
	case errors.Is(err, websocket.ErrMessageTooBig):
		return errors.New("the server sent a message that is too large: raise reply_kb, or let it send less")
	case websocket.CloseStatus(err) != -1:
		var closed websocket.CloseError
		errors.As(err, &closed)
		return fmt.Errorf("the server closed the session (%d %s)", closed.Code, short(closed.Reason))
	}
	return fmt.Errorf("the connection broke: %w", err)
}

// watch asks a quiet session for signs of life, so that one whose other end is gone does not pass for one that lives. A server
// may be busy for as long as it may take for an answer.
func (s *session) watch(every time.Duration) {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-s.dead:
			return
		case <-tick.C:
		}
		if s.busy.Load() {
			continue
		}
		lifeless := time.AfterFunc(s.limit, func() {
			if !s.busy.Load() {
				s.end(errHalfOpen)
			}
		})
		s.pinged.Store(true)
		// It ends with a pong, or with the session, or cannot be sent.
		if err := s.conn.Ping(context.Background()); errors.Is(err, context.DeadlineExceeded) {
			s.end(errHalfOpen)
		}
		s.pinged.Store(false)
		lifeless.Stop()
	}
}

// end breaks the session off.
func (s *session) end(why error) {
	s.once.Do(func() {
		s.why = why
		_ = s.conn.CloseNow() // nobody waits for anything any more
	})
}

func (s *session) alive() bool {
	select {
	case <-s.dead:
		return false
	default:
		return true
	}
}

// ask sends a message and waits for its answer. After an error that is no *refusal the session is broken: what comes late
// cannot be told from the next answer.
func (s *session) ask(ctx context.Context, kind string, data any) (answer, error) {
	s.busy.Store(true)
	defer s.busy.Store(false)
	ctx, cancel := context.WithTimeoutCause(ctx, s.limit, fmt.Errorf("no answer to %s in %v (timeout_s)", kind, s.limit))
	defer cancel()
	text, err := s.exchange(ctx, message{Type: kind, Data: data})
	if err != nil {
		return answer{}, err
	}
	a, err := decode(text)
	var said *refusal
	if err != nil && !errors.As(err, &said) {
		s.end(err)
		err = fmt.Errorf("%s: %w: %w", kind, errBroken, err)
	}
	return a, err
}

func (s *session) exchange(ctx context.Context, what message) ([]byte, error) {
	text, err := json.Marshal(what)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", what.Type, err)
	}
	// A server that is full, or whose environment could not be made, has said so by now or says so in place of an answer. What
	// it has said is read even where nothing can be sent any more.
	select {
	case text := <-s.inbox:
		var said *refusal
		if _, err := decode(text); !errors.As(err, &said) {
			s.end(errUnasked)
			return nil, fmt.Errorf("%s: %w: %w", what.Type, errBroken, errUnasked)
		}
		return text, nil
	default:
	}
	if s.alive() {
		_ = s.conn.Write(ctx, websocket.MessageText, text) // or the session ends, which is seen below
	}
	select {
	case text := <-s.inbox:
		return text, nil
	case <-ctx.Done():
		s.end(context.Cause(ctx))
		<-s.dead
	case <-s.dead:
	}
	select {
	case text := <-s.inbox:
		return text, nil
	default:
	}
	reason := s.why
	if ctx.Err() != nil {
		reason = context.Cause(ctx)
	}
	return nil, fmt.Errorf("%s: %w: %w", what.Type, errBroken, reason)
}

// leave tells the server to end the session and waits until it has, so that its place is free.
func (s *session) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), closeWait)
	defer cancel()
	if s.alive() && s.conn.Write(ctx, websocket.MessageText, []byte(`{"type":"close"}`)) == nil {
		select {
		case <-s.dead:
		case <-ctx.Done():
		}
	}
	s.end(errClosed)
	<-s.dead
}
