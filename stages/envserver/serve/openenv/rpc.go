package openenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Codes of JSON-RPC 2.0 (https://www.jsonrpc.org/specification#error_object).
const (
	rpcParse    = -32700
	rpcRequest  = -32600
	rpcMethod   = -32601
	rpcParams   = -32602
	rpcInternal = -32603
	rpcServer   = -32000
)

// rpcReply has a result or an error.
type rpcReply struct {
	JSONRPC string          `json:"jsonrpc"`
	ID      json.RawMessage `json:"id"`
	Result  any             `json:"result,omitempty"`
	Error   *rpcError       `json:"error,omitempty"`
}

type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
	Data    any    `json:"data"`
}

func failed(id json.RawMessage, code int, data any, format string, args ...any) rpcReply {
	return rpcReply{"2.0", id, nil, &rpcError{code, fmt.Sprintf(format, args...), data}}
}

func capacityReply(id json.RawMessage, err error) rpcReply {
	var data any
	var full *fullError
	if errors.As(err, &full) {
		data = map[string]int{"active_sessions": full.active, "max_sessions": full.most}
	}
	return failed(id, rpcServer, data, "%v", err)
}

// mcp is POST /mcp. Every reply has status 200, as in the original.
func (s *Server) mcp(w http.ResponseWriter, r *http.Request) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, longest))
	if err != nil {
		answer(w, http.StatusOK, failed(nil, rpcParse, nil, "the request could not be read: %v", err))
		return
	}
	answer(w, http.StatusOK, s.rpc(r.Context(), nil, data))
}

// rpc answers a request in a session, or without one.
func (s *Server) rpc(ctx context.Context, session *session, data []byte) rpcReply {
	if !json.Valid(data) {
		return failed(nil, rpcParse, nil, "Parse error")
	}
	if session != nil {
		session.turn.Lock()
		defer session.turn.Unlock()
		if ctx.Err() != nil {
			return failed(nil, rpcServer, nil, "%v", context.Cause(ctx))
		}
	}
	return s.call(ctx, session, data)
}

type rpcParamsOf struct {
	SessionID string          `json:"session_id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// call answers a request. Of a session the turn is held.
func (s *Server) call(ctx context.Context, mine *session, data []byte) rpcReply {
	var r struct {
		JSONRPC string          `json:"jsonrpc"`
		Method  string          `json:"method"`
		Params  json.RawMessage `json:"params"`
		ID      json.RawMessage `json:"id"`
	}
	var object map[string]json.RawMessage
	if json.Unmarshal(data, &object) != nil || json.Unmarshal(data, &r) != nil || r.JSONRPC != "2.0" || r.Method == "" ||
		only(object, "jsonrpc", "method", "params", "id") != nil || !isID(r.ID) {
		return failed(nil, rpcRequest, nil, `Invalid request: want {"jsonrpc": "2.0", "method": "…", "params": {…}, "id": …}`)
	}
	var params rpcParamsOf
	if len(r.Params) > 0 && json.Unmarshal(r.Params, &params) != nil {
		return failed(r.ID, rpcParams, nil, "Params must be an object")
	}
	switch r.Method {
	case "openenv/session/create":
		session := mine
		if session == nil {
			var err error
			if session, err = s.sessions.open(context.WithoutCancel(ctx)); err != nil {
				return capacityReply(r.ID, err)
			}
		}
		return rpcReply{"2.0", r.ID, map[string]string{"session_id": session.id}, nil}
	case "openenv/session/close":
		return s.closeSession(r.ID, mine, params.SessionID)
	case "tools/list", "tools/call":
	default:
		return failed(r.ID, rpcMethod, nil, "Method not found: %s", r.Method)
	}
	session := mine
	if session == nil {
		var err error
		var done func()
		if session, done, err = s.borrow(ctx, params.SessionID); err != nil {
			var full *fullError
			if errors.As(err, &full) {
				return capacityReply(r.ID, err)
			}
			return failed(r.ID, rpcParams, nil, "%v", err)
		}
		defer done()
		var stop func()
		if ctx, stop = during(ctx, session.ctx); ctx.Err() != nil {
			stop()
			return failed(r.ID, rpcServer, nil, "%v", context.Cause(ctx))
		}
		defer stop()
	}
	if r.Method == "tools/list" {
		return rpcReply{"2.0", r.ID, map[string]any{"tools": toolList(s.toolsOf(session), "inputSchema")}, nil}
	}
	return s.callTool(ctx, session, r.ID, params)
}

// during is a context that ends with either of two.
func during(ctx, other context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(other, func() { cancel(context.Cause(other)) })
	return ctx, func() { stop(); cancel(nil) }
}

// borrow gives the turn in the session of an id, or in a new one where there is no id, which ends with done.
func (s *Server) borrow(ctx context.Context, id string) (_ *session, done func(), err error) {
	if id == "" {
		session, err := s.sessions.open(ctx)
		if err != nil {
			return nil, nil, err
		}
		session.turn.Lock()
		return session, func() { session.turn.Unlock(); s.sessions.close(session, errClosed) }, nil
	}
	session := s.sessions.find(id)
	if session == nil {
		return nil, nil, original("Unknown session_id: " + id)
	}
	end := s.sessions.begin(session)
	session.turn.Lock()
	return session, func() { session.turn.Unlock(); end() }, nil
}

func (s *Server) closeSession(id json.RawMessage, mine *session, target string) rpcReply {
	switch {
	case target == "":
		return failed(id, rpcParams, nil, "Invalid params - 'session_id' is required")
	case mine != nil && target == mine.id:
		return failed(id, rpcRequest, nil, "Cannot close active WebSocket-managed session via MCP method")
	}
	found, waits := s.sessions.closeByID(target)
	switch {
	case !found:
		return failed(id, rpcParams, nil, "Unknown session_id: %s", target)
	case waits:
		return rpcReply{"2.0", id, map[string]any{"session_id": target, "closed": false, "closing": true}, nil}
	}
	return rpcReply{"2.0", id, map[string]any{"session_id": target, "closed": true}, nil}
}

// callTool is tools/call. The result's meta says whether the episode is done, and what it was worth.
func (s *Server) callTool(ctx context.Context, session *session, id json.RawMessage, params rpcParamsOf) rpcReply {
	if params.Name == "" {
		return failed(id, rpcParams, nil, "Missing 'name' in params")
	}
	r, err := s.act(ctx, session, call(params.Name, params.Arguments))
	if err != nil {
		s.warn(ctx, session, err)
		return failed(id, rpcInternal, nil, "%v", err)
	}
	meta := map[string]any{"done": r.Done, "reward": r.Reward}
	for name, v := range r.Metadata {
		meta[name] = v
	}
	if wrong, ok := r.Observation["error"].(map[string]string); ok {
		return failed(id, rpcParams, meta, "%s", wrong["message"])
	}
	said := r.Observation["result"].(map[string]any)
	said["meta"] = meta
	return rpcReply{"2.0", id, said, nil}
}

func isID(id json.RawMessage) bool {
	id = bytes.TrimSpace(id)
	return len(id) == 0 || string(id) == "null" || id[0] == '"' || id[0] == '-' || id[0] >= '0' && id[0] <= '9'
}

// toolList is what clients are told of tools; the name of the schema differs from one message to the other.
func toolList(tools []env.Tool, schema string) []map[string]any {
	list := []map[string]any{}
	for _, t := range tools {
		list = append(list, map[string]any{"name": t.Name, "description": t.Description, schema: t.Schema})
	}
	return list
}

// toolResult is what a tool said, as FastMCP's CallToolResult.
func toolResult(messages []env.Message) map[string]any {
	content := []map[string]any{}
	for _, m := range messages {
		for _, i := range m.Images {
			content = append(content, map[string]any{"type": "image", "data": i.Data, "mimeType": i.MIME})
		}
		content = append(content, map[string]any{"type": "text", "text": m.Content})
	}
	said := text(messages)
	return map[string]any{
		"content": content, "structured_content": map[string]any{"result": said}, "meta": nil, "data": said, "is_error": strings.HasPrefix(said, refusal),
	}
}
