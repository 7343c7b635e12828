package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/prl-project/prl/stages/envserver/env"
)

// fake is a server in this process, without a network, so that time can be made up (synctest). Its sessions are like OpenEnv's.
type fake struct {
	capacity int
	schema   string
	version  string
	// serve has a session instead of play; n counts them from 0.
	serve func(n int, c *websocket.Conn)

	listener *pipes
	mu       sync.Mutex
	sessions int // that were opened
	active   int
	most     int // at once
	refused  int
	down     bool // nobody listens
}

const sayAction = `{"type":"object","properties":{"metadata":{"type":"object"},"message":{"type":"string"}},"required":["message"]}`

// pipes is a listener whose connections are in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// start starts it and returns what a client needs; both end with the test.
func (f *fake) start(t *testing.T, cfg Config) *server {
	t.Helper()
	f.listener = &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
	if f.schema == "" {
		f.schema = sayAction
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/health", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"status":"healthy"}`) })
	mux.HandleFunc("/metadata", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"version":%q}`, f.version) })
	mux.HandleFunc("/schema", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, `{"action":%s}`, f.schema) })
	mux.HandleFunc("/ws", f.session)
	h := &http.Server{Handler: mux}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = h.Serve(f.listener) // ends with an error, always
	}()
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		f.mu.Lock()
		down := f.down
		f.mu.Unlock()
		if down {
			return nil, errors.New("connection refused")
		}
		here, there := net.Pipe()
		select {
		case f.listener.conns <- there:
			return here, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	t.Cleanup(func() {
		_ = h.Close() // it says that the listener is closed
		<-done
		transport.CloseIdleConnections()
	})
	s, err := newServer(cfg, "http://fake")
	if err != nil {
		t.Fatal(err)
	}
	s.client = &http.Client{Transport: transport}
	return s
}

// open is the environment that the server has.
func (f *fake) open(t *testing.T, change func(*Config)) *OpenEnv {
	t.Helper()
	cfg := Defaults()
	if change != nil {
		change(&cfg)
	}
	e, err := open(t.Context(), "mine", cfg, f.start(t, cfg))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func (f *fake) session(w http.ResponseWriter, r *http.Request) {
	c, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	defer c.CloseNow()
	f.mu.Lock()
	n := f.sessions
	f.sessions++
	full := f.capacity > 0 && f.active >= f.capacity
	if full {
		f.refused++
	} else {
		f.active++
		f.most = max(f.most, f.active)
	}
	f.mu.Unlock()
	if full {
		send(c, `{"type":"error","data":{"message":"full","code":"CAPACITY_REACHED","active_sessions":%d,"max_sessions":%d}}`, f.capacity, f.capacity)
		_ = c.Close(websocket.StatusNormalClosure, "") // the client may be gone
		return
	}
	if f.serve != nil {
		f.serve(n, c)
	} else {
		play(c)
	}
	f.mu.Lock()
	f.active--
	f.mu.Unlock()
	_ = c.Close(websocket.StatusNormalClosure, "")
}

func (f *fake) counts() (sessions, most, refused, active int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sessions, f.most, f.refused, f.active
}

// play is an environment that says what it hears, until "bye"; it is what OpenEnv makes of it on the wire.
func play(c *websocket.Conn) {
	for {
		kind, data, err := receive(c)
		switch {
		case err != nil || kind == "close":
			return
		case kind == "reset":
			send(c, `{"type":"observation","data":{"observation":{"text":"hello","seed":%s},"reward":0.0,"done":false}}`, data["seed"])
		case kind == "state":
			send(c, `{"type":"state","data":{"step_count":3,"lucky":true,"episode_id":"e"}}`)
		default:
			text := data["message"]
			send(c, `{"type":"observation","data":{"observation":{"text":%s},"reward":%d,"done":%t,"metadata":{"n":%d}}}`, text, len(text)-2, string(text) == `"bye"`, len(text))
		}
	}
}

func receive(c *websocket.Conn) (kind string, data map[string]json.RawMessage, err error) {
	_, text, err := c.Read(context.Background())
	if err != nil {
		return "", nil, err
	}
	m := message{Data: &data}
	err = json.Unmarshal(text, &m)
	return m.Type, data, err
}

func send(c *websocket.Conn, format string, args ...any) {
	_ = c.Write(context.Background(), websocket.MessageText, fmt.Appendf(nil, format, args...)) // the client may be gone
}

// begin starts an episode; it ends with the test.
func begin(t *testing.T, e env.Environment, task string) *env.Session {
	t.Helper()
	s, err := env.Begin(t.Context(), e, json.RawMessage(task), 1)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// say replies with a text and returns what is answered.
func say(t *testing.T, s *env.Session, text string) (string, bool, error) {
	t.Helper()
	turn, err := s.Reply(t.Context(), env.Assistant(text))
	if err != nil || len(turn.Messages) == 0 {
		return "", turn.Done, err
	}
	return turn.Messages[0].Content, turn.Done, nil
}

// plays plays an episode to its end.
func plays(t *testing.T, s *env.Session) {
	t.Helper()
	if got, done, err := say(t, s, "bye"); err != nil || got != "bye" || !done {
		t.Fatalf("bye: %q, %v, %v", got, done, err)
	}
	score, err := s.Score(t.Context())
	if err != nil || score.Rewards.Total() == nil {
		t.Fatalf("score %+v, %v", score, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// within bounds a wait of a test.
func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
