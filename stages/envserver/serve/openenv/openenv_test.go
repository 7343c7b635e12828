package openenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/serve"
)

// odd is an environment that does to its caller what it is told.
type odd struct {
	started, ended chan struct{} // a call that hangs
	closed         chan struct{}
	released       chan struct{} // lets a call go that heeds nothing
}

func newOdd() *odd {
	return &odd{make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{}, 100), make(chan struct{})}
}

func (o *odd) Info() env.Info { return env.Info{Name: "odd", Version: "1", Train: 4, MaxTurns: 3} }

func (o *odd) Task(_ env.Split, index int) (json.RawMessage, error) {
	return json.RawMessage(fmt.Sprintf(`{"n": %d}`, index)), nil
}

func (o *odd) Start(context.Context, json.RawMessage, int64) (env.Episode, error) {
	return &oddEpisode{odd: o}, nil
}

type oddEpisode struct {
	*odd
	seen []string
}

func (e *oddEpisode) Prompt() []env.Message { return []env.Message{env.System("S"), env.User("Go.")} }

func (e *oddEpisode) Reply(ctx context.Context, m env.Message) (env.Turn, error) {
	e.seen = append(e.seen, m.Content)
	switch m.Content {
	case "panic":
		panic("as told")
	case "fail":
		return env.Turn{}, errors.New("as told")
	case "hang":
		e.started <- struct{}{}
		<-ctx.Done()
		e.ended <- struct{}{}
		return env.Turn{}, ctx.Err()
	case "stuck":
		<-e.released
	case "end":
		return env.Turn{Done: true}, nil
	}
	return env.Turn{Messages: []env.Message{env.User(strings.Join(e.seen, " "))}}, nil
}

func (e *oddEpisode) Score(context.Context) (env.Score, error) {
	return env.Score{Rewards: env.Rewards{"said": env.Weighted(float64(len(e.seen)), 2), "absent": env.NotApplicable(1)}, Metrics: map[string]float64{"m": 3}}, nil
}

func (e *oddEpisode) Close() error {
	e.closed <- struct{}{}
	return nil
}

// What a client may say, and what it hears.
func TestSocket(t *testing.T) {
	c := start(t, newOdd(), usual()).dial(t, "/ws")
	c.ask(`{`, `"type":"error"`, `"code":"INVALID_JSON"`)
	c.ask(`[]`, `"code":"VALIDATION_ERROR"`)
	c.ask(`{"type":"jump"}`, `"code":"UNKNOWN_TYPE"`, "Unknown message type: jump")
	c.ask(`{"type":"state","data":{}}`, `"code":"VALIDATION_ERROR"`, `"errors":[{"type":"extra_forbidden","loc":["data"]`)
	c.ask(`{"type":"reset","data":{"seed":"x"}}`, `"code":"VALIDATION_ERROR"`, `"loc":["seed"]`)
	c.ask(`{"type":"step"}`, `"code":"VALIDATION_ERROR"`)
	c.ask(`{"type":"state"}`, `{"type":"state","data":{"episode_id":null,"step_count":0}}`)
	c.ask(`{"type":"reset","data":{"seed":6,"episode_id":"e"}}`, `"type":"observation"`, `"reward":null,"done":false`, `"messages":[{"role":"system","content":"S"},{"role":"user","content":"Go."}]`,
		`"prompt":"S\n\nGo."`, `"index":2`)
	c.ask(`{"type":"step","data":{"message":"a"}}`, `"prompt":"a"`, `"done":false`)
	c.ask(`{"type":"step","data":{"message":"end"}}`, `"reward":4,"done":true`, `"rewards":{"absent":null,"said":2}`, `"weights":{"absent":1,"said":2}`, `"metrics":{"m":3}`,
		`"stop_reason":"done"`, `"truncated":false`, `"messages":[]`)
	c.ask(`{"type":"state"}`, `"step_count":2`, `"done":true`)
	c.ask(`{"type":"step","data":{"message":"b"}}`, `"code":"EXECUTION_ERROR"`, "reset")
	c.ask(`{"type":"reset"}`, `"done":false`)
	for _, word := range []string{"a", "b"} {
		c.ask(`{"type":"step","data":{"message":"`+word+`"}}`, `"done":false`)
	}
	c.ask(`{"type":"step","data":{"message":"c"}}`, `"done":true`, `"truncated":true`, `"stop_reason":"max_turns"`)
	for _, word := range []string{"panic", "fail"} {
		c.ask(`{"type":"reset","data":{}}`, `"done":false`)
		c.ask(`{"type":"step","data":{"message":"`+word+`"}}`, `"code":"EXECUTION_ERROR"`, "as told")
		c.ask(`{"type":"step","data":{"message":"a"}}`, `"code":"EXECUTION_ERROR"`, "reset the environment")
	}
	c.send(`{"type":"close"}`)
	c.ends(websocket.StatusNormalClosure, "")
}

// A step without a reset begins an episode.
func TestUnreset(t *testing.T) {
	c := start(t, newOdd(), usual()).dial(t, "/ws")
	c.ask(`{"type":"step","data":{"message":"a"}}`, `"prompt":"a"`)
}

// Every session closes its episodes, and frees its place, however it ends.
func TestEnds(t *testing.T) {
	o := newOdd()
	cfg := usual()
	cfg.Sessions = 1
	r := start(t, o, cfg)
	await(t, o.closed) // the one that New began
	for name, end := range map[string]func(c client){
		"close":   func(c client) { c.send(`{"type":"close"}`) },
		"closing": func(c client) { _ = c.conn.Close(websocket.StatusNormalClosure, "") },
		"broken":  func(c client) { _ = c.conn.CloseNow() },
		"during a call": func(c client) {
			c.send(`{"type":"step","data":{"message":"hang"}}`)
			await(t, o.started)
			_ = c.conn.CloseNow()
			await(t, o.ended)
		},
	} {
		t.Run(name, func(t *testing.T) {
			end(r.place(t))
			await(t, o.closed)
		})
	}
}

// Who comes when all places are taken is told so before it asks, and the connection is closed with 1000.
func TestCapacity(t *testing.T) {
	cfg := usual()
	cfg.Sessions = 2
	r := start(t, newOdd(), cfg)
	a, b := r.dial(t, "/ws"), r.dial(t, "/mcp")
	a.ask(`{"type":"state"}`)
	b.ask(`{"jsonrpc":"2.0","method":"tools/list","id":1}`)
	c := r.dial(t, "/ws")
	if said, err := c.read(); err != nil || !strings.Contains(said, `"active_sessions":2,"code":"CAPACITY_REACHED","max_sessions":2`) {
		t.Errorf("%s, %v", said, err)
	}
	c.ends(websocket.StatusNormalClosure, "")
	d := r.dial(t, "/mcp")
	if said, err := d.read(); err != nil || !strings.Contains(said, `"code":-32000`) || !strings.Contains(said, `"max_sessions":2`) {
		t.Errorf("%s, %v", said, err)
	}
	d.ends(websocket.StatusNormalClosure, "")
	if status, said := r.post(t, "/reset", `{}`); status != http.StatusServiceUnavailable {
		t.Errorf("%d %s", status, said)
	}
	if status, said := r.post(t, "/mcp", `{"jsonrpc":"2.0","method":"openenv/session/create","id":1}`); status != 200 || !strings.Contains(said, `"active_sessions":2`) {
		t.Errorf("%d %s", status, said)
	}
	a.send(`{"type":"close"}`)
	a.ends(websocket.StatusNormalClosure, "")
	r.dial(t, "/ws").ask(`{"type":"reset"}`, `"observation"`)
}

// Sessions that nobody uses are closed; one that is in a call is used.
func TestIdle(t *testing.T) {
	o := newOdd()
	cfg := usual()
	cfg.Idle = 20 * time.Millisecond
	r := start(t, o, cfg)
	await(t, o.closed)
	r.dial(t, "/ws").ends(websocket.StatusGoingAway, "not used")
	_, said := r.post(t, "/mcp", `{"jsonrpc":"2.0","method":"openenv/session/create","id":1}`)
	id := strings.Split(said, `"`)[len(strings.Split(said, `"`))-2]
	if made := r.sessions.find(id); made != nil {
		<-made.ctx.Done()
	}
	r = start(t, o, usual())
	c, unused := r.dial(t, "/ws"), r.dial(t, "/ws")
	c.send(`{"type":"step","data":{"message":"hang"}}`)
	await(t, o.started)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go r.sessions.reap(ctx, time.Millisecond)
	unused.ends(websocket.StatusGoingAway, "not used") // so the reaper has been here
	select {
	case <-o.ended:
		t.Error("a session was closed that was in a call")
	default:
	}
}

// Stopping ends calls and sessions, and says why.
func TestStop(t *testing.T) {
	o := newOdd()
	r := start(t, o, usual())
	idle, busy := r.dial(t, "/ws"), r.dial(t, "/ws")
	idle.ask(`{"type":"reset"}`)
	busy.send(`{"type":"step","data":{"message":"hang"}}`)
	await(t, o.started)
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	await(t, o.ended)
	idle.ends(websocket.StatusGoingAway, "stops")
	busy.ends(websocket.StatusGoingAway, "stops")
	if n := len(r.sessions.byID); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// A call of the environment has a deadline. One that does not heed it keeps its episode, and closes it should it ever return.
func TestLimit(t *testing.T) {
	o := newOdd()
	s := serve.Served{Env: o, Limit: 20 * time.Millisecond}
	for _, word := range []string{"hang", "stuck"} {
		e, err := s.Begin(t.Context(), serve.Chosen{Split: env.Train}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := e.Reply(t.Context(), env.Assistant(word)); err == nil || !strings.Contains(err.Error(), "has not answered in 20ms") {
			t.Errorf("%s: %v", word, err)
		}
		if _, err := e.Score(t.Context()); err == nil {
			t.Errorf("%s: a score", word)
		}
		e.Close()
		if word == "stuck" {
			select {
			case <-o.closed:
				t.Error("an episode was closed that was in a call")
			default:
			}
			close(o.released)
		}
		await(t, o.closed)
	}
}

// The requests of HTTP, each of which has an episode of its own.
func TestHTTP(t *testing.T) {
	r := start(t, newOdd(), usual())
	for _, c := range []struct {
		method, path, body string
		status             int
		want               string
	}{
		{"GET", "/health", "", 200, `{"status":"healthy"}`},
		{"GET", "/metadata", "", 200, `"name":"odd"`},
		{"GET", "/schema", "", 200, `"reset_observation"`},
		{"GET", "/state", "", 200, `{"episode_id":null,"step_count":0}`},
		{"POST", "/reset", "", 200, `"prompt":"S\n\nGo."`},
		{"POST", "/reset", `{"seed":1,"split":"train","extra":1}`, 200, `"index":1`},
		{"POST", "/reset", `{"seed":-1}`, 422, `"loc":["seed"]`},
		{"POST", "/reset", `{"split":"eval"}`, 422, "no tasks"},
		{"POST", "/reset", `{"index":4}`, 422, "0 to 3"},
		{"POST", "/step", `{"action":{"message":"end"},"index":2,"seed":5}`, 200, `"reward":2,"done":true`},
		{"POST", "/step", `{"action":{"message":"hang"},"timeout_s":0.01}`, 500, "deadline"},
		{"POST", "/step", `{"action":{"message":"a"},"timeout_s":0}`, 422, "timeout_s"},
		{"POST", "/step", `{}`, 422, `"loc":["action"]`},
		{"POST", "/step", `{"action":{"type":"list_tools"}}`, 200, `"tools":[]`},
		{"GET", "/list_environments", "", 200, `["odd"]`},
		{"GET", "/odd/splits", "", 200, `{"name":"eval","type":"validation"}`},
		{"GET", "/even/splits", "", 404, "unknown environment"},
		{"POST", "/odd/num_tasks", `{"split":"train"}`, 200, `{"num_tasks":4}`},
		{"POST", "/odd/task", `{"split":"train","index":3}`, 200, `{"task":{"n":3}}`},
		{"POST", "/odd/task", `{"split":"train","index":4}`, 400, "Invalid task index"},
		{"POST", "/odd/task", `{"split":"train"}`, 422, `"loc":["index"]`},
		{"POST", "/odd/tasks", `{"split":"train"}`, 200, `{"env_name":"odd","tasks":[{"n":0},{"n":1},{"n":2},{"n":3}]}`},
		{"POST", "/odd/task_range", `{"split":"train","start":1,"stop":3}`, 200, `{"tasks":[{"n":1},{"n":2}]}`},
		{"POST", "/mcp", `{`, 200, `"code":-32700`},
		{"POST", "/mcp", `{"jsonrpc":"1.0","method":"tools/list"}`, 200, `"code":-32600`},
		{"POST", "/mcp", `{"jsonrpc":"2.0","method":"initialize","id":"i"}`, 200, `"id":"i","error":{"code":-32601`},
		{"POST", "/mcp", `{"jsonrpc":"2.0","method":"tools/list","params":{"session_id":"x"},"id":2}`, 200, "Unknown session_id: x"},
		{"POST", "/mcp", `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"x"},"id":2}`, 200, `"code":-32602`},
		{"DELETE", "/mcp", "", 405, ""},
	} {
		if status, said := r.do(t, c.method, c.path, c.body); status != c.status || !strings.Contains(said, c.want) {
			t.Errorf("%s %s %s: %d %s, want %d %s", c.method, c.path, c.body, status, said, c.status, c.want)
		}
	}
	if n := len(r.sessions.byID); n != 0 {
		t.Errorf("%d sessions are left", n)
	}
}

// A session that HTTP made is shared with one WebSocket at a time, and outlives it.
func TestShared(t *testing.T) {
	r := start(t, words(t, true), usual())
	_, said := r.post(t, "/mcp", `{"jsonrpc":"2.0","method":"openenv/session/create","id":1}`)
	var made struct {
		Result struct {
			SessionID string `json:"session_id"`
		}
	}
	if err := json.Unmarshal([]byte(said), &made); err != nil || made.Result.SessionID == "" {
		t.Fatalf("%s: %v", said, err)
	}
	id := made.Result.SessionID
	call := `{"jsonrpc":"2.0","method":"tools/call","params":{"name":"Guess","arguments":{"word":"crane"},"session_id":"` + id + `"},"id":2}`
	c := r.dial(t, "/ws?session_id="+id)
	c.ask(`{"type":"reset","data":{"index":0}}`, `"observation"`)
	if _, said := r.post(t, "/mcp", call); !strings.Contains(said, `"structured_content":{"result":`) || !strings.Contains(said, `"done":false`) {
		t.Error(said)
	}
	c.ask(`{"type":"state"}`, `"step_count":1`)
	c.ask(`{"type":"mcp","data":{"jsonrpc":"2.0","method":"tools/call","params":{"name":"Guess","arguments":{"word":"crane"}},"id":3}}`, `{"type":"mcp","data":{"jsonrpc":"2.0","id":3,"result":`)
	second := r.dial(t, "/ws?session_id="+id)
	if said, err := second.read(); err != nil || !strings.Contains(said, `"code":"SESSION_ERROR"`) {
		t.Errorf("a second WebSocket: %s, %v", said, err)
	}
	c.send(`{"type":"close"}`)
	c.ends(websocket.StatusNormalClosure, "")
	if _, said := r.post(t, "/mcp", call); !strings.Contains(said, `"result"`) {
		t.Error(said)
	}
	c = r.dial(t, "/ws?session_id="+id)
	c.ask(`{"type":"state"}`, `"step_count":3`)
	shut := `{"jsonrpc":"2.0","method":"openenv/session/close","params":{"session_id":"` + id + `"},"id":4}`
	if _, said := r.post(t, "/mcp", shut); !strings.Contains(said, `"closing":true`) {
		t.Error(said)
	}
	c.send(`{"type":"close"}`)
	c.ends(websocket.StatusNormalClosure, "")
	if _, said := r.post(t, "/mcp", shut); !strings.Contains(said, "Unknown session_id") {
		t.Error(said)
	}
}

// Without the token there is nothing but health, and a page of another place gets nothing at all.
func TestAccess(t *testing.T) {
	cfg := usual()
	cfg.Token = "secret"
	r := start(t, newOdd(), cfg)
	for _, token := range []string{"", "secre", "Bearer"} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/reset", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		reply, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		reply.Body.Close()
		if reply.StatusCode != http.StatusUnauthorized {
			t.Errorf("with the token %q: %s", token, reply.Status)
		}
		if _, _, err := websocket.Dial(t.Context(), r.url+"/ws", &websocket.DialOptions{HTTPHeader: http.Header{"Authorization": {"Bearer " + token}}}); err == nil {
			t.Errorf("a WebSocket with the token %q", token)
		}
	}
	elsewhere := http.Header{"Authorization": {"Bearer secret"}, "Origin": {"http://elsewhere.example"}}
	if _, _, err := websocket.Dial(t.Context(), r.url+"/ws", &websocket.DialOptions{HTTPHeader: elsewhere}); err == nil {
		t.Error("a WebSocket of a page elsewhere")
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, r.url+"/reset", nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header = elsewhere
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	reply.Body.Close()
	if reply.StatusCode != http.StatusForbidden {
		t.Errorf("a form of a page elsewhere: %s", reply.Status)
	}
}

// What cannot be played is refused at the start.
func TestRefused(t *testing.T) {
	served := serve.Served{Env: newOdd(), Limit: time.Second}
	if _, err := New(t.Context(), served, Config{Sessions: 0, Idle: time.Hour}, nil); err == nil {
		t.Error("no sessions")
	}
	served.Env = hosted{newOdd(), env.Hosted{}}
	if _, err := New(t.Context(), served, usual(), nil); !errors.Is(err, env.ErrHosted) {
		t.Errorf("a host: %v", err)
	}
}

type hosted struct {
	*odd
	env.Hosted
}

func (h hosted) Start(ctx context.Context, task json.RawMessage, seed int64) (env.Episode, error) {
	return h.Hosted.Start(ctx, task, seed)
}
