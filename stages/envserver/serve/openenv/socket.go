package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/coder/websocket"
)

const (
	// longest is a message, or the body of a request, in bytes.
	longest = 16 << 20
	// waiting is how many messages of a client are kept while the environment answers. Reading goes on meanwhile, since that is
	// what answers the client's pings.
	waiting = 32
	// writeTime is how long a client may take to read a reply.
	writeTime = 30 * time.Second
)

// Codes of errors, the original's.
const (
	codeJSON       = "INVALID_JSON"
	codeType       = "UNKNOWN_TYPE"
	codeValidation = "VALIDATION_ERROR"
	codeExecution  = "EXECUTION_ERROR"
	codeCapacity   = "CAPACITY_REACHED"
	codeSession    = "SESSION_ERROR"
)

// frame is a message to the client.
type frame struct {
	Type string `json:"type"`
	Data any    `json:"data"`
}

func errorFrame(err error) frame {
	var bad *invalidError
	var full *fullError
	switch {
	case errors.As(err, &bad):
		return frame{"error", map[string]any{"message": "Invalid message: " + bad.Error(), "code": codeValidation, "errors": bad.errors}}
	case errors.As(err, &full):
		return frame{"error", map[string]any{"message": full.Error(), "code": codeCapacity, "active_sessions": full.active, "max_sessions": full.most}}
	}
	return frame{"error", map[string]any{"message": err.Error(), "code": codeExecution}}
}

// socket is /ws: a session of its own, or one that HTTP made.
func (s *Server) socket(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return // it has answered
	}
	var session *session
	var leave func()
	refused := frame{}
	if id := r.URL.Query().Get("session_id"); id != "" {
		if session, leave, err = s.sessions.attach(id); err != nil {
			refused = frame{"error", map[string]any{"message": err.Error(), "code": codeSession}}
		}
	} else if session, err = s.sessions.open(r.Context()); err == nil {
		leave = func() { s.sessions.close(session, errClosed) }
	} else {
		refused = errorFrame(err)
	}
	s.converse(conn, session, leave, refused, s.message)
}

// mcpSocket is /mcp: JSON-RPC in a session of its own.
func (s *Server) mcpSocket(w http.ResponseWriter, r *http.Request) {
	conn, err := websocket.Accept(w, r, nil)
	if err != nil {
		return
	}
	mine, err := s.sessions.open(r.Context())
	if err != nil {
		s.converse(conn, nil, nil, capacityReply(nil, err), nil)
		return
	}
	leave := func() { s.sessions.close(mine, errClosed) }
	s.converse(conn, mine, leave, nil, func(ctx context.Context, of *session, data []byte) (any, bool) { return s.rpc(ctx, of, data), false })
}

// A handler answers a message of a session; last where nothing comes after it, and there is no answer.
type handler func(ctx context.Context, session *session, data []byte) (reply any, last bool)

// converse answers message after message until the client goes, asks for it, or the session ends. Without a session it only says
// why, and closes as the original does.
func (s *Server) converse(conn *websocket.Conn, session *session, leave func(), refused any, handle handler) {
	defer conn.CloseNow()
	if session == nil {
		if send(conn, refused) == nil {
			_ = conn.Close(websocket.StatusNormalClosure, "")
		}
		return
	}
	conn.SetReadLimit(longest)
	ctx, gone := context.WithCancel(session.ctx)
	messages := make(chan []byte, waiting)
	read := make(chan struct{})
	go func() {
		defer close(read)
		defer gone()
		for {
			_, data, err := conn.Read(context.WithoutCancel(ctx))
			if err != nil {
				return
			}
			select {
			case messages <- data:
			case <-ctx.Done():
				return
			}
			if closes(data) {
				<-ctx.Done() // the closing handshake ends when the session has, so that its place is free then
				return
			}
		}
	}()
	status, why := websocket.StatusNormalClosure, ""
	for over := false; !over; {
		select {
		case <-ctx.Done():
			if cause := context.Cause(session.ctx); cause != nil && !errors.Is(cause, errClosed) {
				status, why = websocket.StatusGoingAway, cause.Error()
			}
			over = true
		case data := <-messages:
			end := s.sessions.begin(session)
			reply, last := handle(ctx, session, data)
			end()
			over = last || ctx.Err() == nil && send(conn, reply) != nil
		}
	}
	gone()
	leave()
	_ = conn.Close(status, why)
	<-read
}

// closes reports whether a message is the one that closes the session.
func closes(data []byte) bool {
	var m struct{ Type string }
	return json.Unmarshal(data, &m) == nil && m.Type == "close"
}

func send(conn *websocket.Conn, reply any) error {
	data, err := json.Marshal(reply)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), writeTime)
	defer cancel()
	return conn.Write(ctx, websocket.MessageText, data)
}

// message answers one of /ws; last where it closes the session.
func (s *Server) message(ctx context.Context, session *session, data []byte) (reply any, last bool) {
	if !json.Valid(data) {
		return frame{"error", map[string]any{"message": "Invalid JSON", "code": codeJSON}}, false
	}
	var m struct {
		Type string          `json:"type"`
		Data json.RawMessage `json:"data"`
	}
	var object map[string]json.RawMessage
	err := decode(data, &object)
	if err == nil {
		err = decode(data, &m)
	}
	if err != nil {
		return errorFrame(err), false
	}
	session.turn.Lock()
	defer session.turn.Unlock()
	if ctx.Err() != nil {
		return errorFrame(context.Cause(ctx)), false
	}
	var r result
	fields := []string{"type", "data"}
	if m.Type == "state" || m.Type == "close" {
		fields = fields[:1]
	}
	if err = only(object, fields...); err == nil {
		switch m.Type {
		case "reset":
			var args resetArgs
			if args, err = readReset(m.Data); err == nil {
				r, err = s.resetSession(ctx, session, args)
			}
		case "step":
			var a action
			if a, err = readAction(m.Data); err == nil {
				r, err = s.act(ctx, session, a)
			}
		case "state":
			return frame{"state", session.state}, false
		case "mcp":
			return frame{"mcp", s.call(ctx, session, m.Data)}, false
		case "close":
			return nil, true
		default:
			return frame{"error", map[string]any{"message": "Unknown message type: " + m.Type, "code": codeType}}, false
		}
	}
	if err != nil {
		s.warn(ctx, session, err)
		return errorFrame(err), false
	}
	return frame{"observation", r}, false
}

// warn logs what is the environment's fault.
func (s *Server) warn(ctx context.Context, session *session, err error) {
	var bad *invalidError
	if errors.As(err, &bad) || errors.Is(err, errOver) || ctx.Err() != nil {
		return
	}
	c := session.chosen
	s.log.Warn("an episode failed", "env", s.info.Name, "split", c.Split, "task_index", c.Index, "seed", c.Seed, "error", err)
}
