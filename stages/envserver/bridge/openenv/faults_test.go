package openenv

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/coder/websocket"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Each fault ends its own episode with an error that says so, no other one, and the next episode is played.
func TestInvariant_AFaultCostsItsOwnEpisode(t *testing.T) {
	for name, test := range map[string]struct {
		fault func(c *websocket.Conn) // in place of an answer
		want  string
	}{
		"hangs":      {func(c *websocket.Conn) { _, _, _ = c.Read(context.Background()) }, "no answer to step in 20s (timeout_s)"},
		"goes":       {func(c *websocket.Conn) { _ = c.CloseNow() }, "broke"},
		"closes":     {func(c *websocket.Conn) { _ = c.Close(websocket.StatusInternalError, "oh") }, "1011 oh"},
		"no JSON":    {func(c *websocket.Conn) { send(c, "<html>") }, "no message of OpenEnv"},
		"other JSON": {func(c *websocket.Conn) { send(c, `{"text":"hello"}`) }, "no message of OpenEnv"},
		"other type": {func(c *websocket.Conn) { send(c, `{"type":"state","data":{}}`) }, "want an observation"},
		"no object":  {func(c *websocket.Conn) { send(c, `{"type":"observation","data":{"observation":7}}`) }, "no object"},
		"strange":    {func(c *websocket.Conn) { send(c, `{"type":"observation","data":{"observation":{},"reward":"much"}}`) }, "not a number"},
		"nothing":    {func(c *websocket.Conn) { send(c, `{"type":"observation"}`) }, "observation"},
		"much": {func(c *websocket.Conn) {
			send(c, `{"type":"observation","data":{"observation":{"text":"%s"}}}`, strings.Repeat("x", 1<<20))
		}, "reply_kb"},
		"strange code": {func(c *websocket.Conn) { send(c, `{"type":"error","data":{"code":"OUT_OF_CHEESE","message":"+++"}}`) }, "OUT_OF_CHEESE"},
		"no code":      {func(c *websocket.Conn) { send(c, `{"type":"error","data":"+++"}`) }, "no error of OpenEnv"},
		"raises": {func(c *websocket.Conn) {
			send(c, `{"type":"error","data":{"code":"EXECUTION_ERROR","message":"KeyError"}}`)
		}, `raises = "policy"`},
		"breaks": {func(c *websocket.Conn) { send(c, `{"type":"error","data":{"code":"SESSION_ERROR","message":"lost"}}`) }, "lost"},
		"talks": {func(c *websocket.Conn) {
			send(c, `{"type":"pong"}`)
			send(c, `{"type":"pong"}`)
			send(c, `{"type":"pong"}`)
		}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := &fake{capacity: 3}
				f.serve = func(n int, c *websocket.Conn) {
					if n != 1 {
						play(c)
						return
					}
					_, _, _ = c.Read(context.Background())
					send(c, `{"type":"observation","data":{"observation":{"text":"hello"}}}`)
					_, _, _ = c.Read(context.Background())
					test.fault(c)
					for err := error(nil); err == nil; { // until the client goes
						_, _, err = c.Read(context.Background())
					}
				}
				e := f.open(t, func(c *Config) { c.ReplyKB, c.Episodes = 64, 100 })
				synctest.Wait()
				broken, other := begin(t, e, `{}`), begin(t, e, `{}`)
				if _, _, err := say(t, broken, "x"); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("error %v, want one with %q", err, test.want)
				}
				if err := broken.Close(); err != nil {
					t.Error(err)
				}
				start := time.Now()
				next := begin(t, e, `{}`)
				if waited := time.Since(start); waited > 0 {
					t.Errorf("the next one has waited for %v", waited)
				}
				plays(t, other)
				plays(t, next)
			})
		})
	}
}

// A session whose other end is gone without a word is found out while the policy thinks, and one that is only quiet is not.
func TestHalfOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		mute := make(chan struct{})
		f.serve = func(n int, c *websocket.Conn) {
			if n != 1 {
				play(c)
				return
			}
			_, _, _ = c.Read(context.Background())
			send(c, `{"type":"observation","data":{"observation":{"text":"hello"}}}`)
			<-mute // who does not read does not answer pings either
		}
		e := f.open(t, nil)
		synctest.Wait()
		half, quiet := begin(t, e, `{}`), begin(t, e, `{}`)
		time.Sleep(5 * time.Minute)
		start := time.Now()
		if _, _, err := say(t, half, "x"); err == nil || !strings.Contains(err.Error(), "half-open") || time.Since(start) > 0 {
			t.Errorf("error %v after %v", err, time.Since(start))
		}
		plays(t, quiet)
		close(mute)
	})
}

// A server that does not let go of a session costs its place for a few seconds, not for ever.
func TestServerDoesNotLetGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, held := &fake{}, make(chan struct{})
		defer close(held)
		f.serve = func(n int, c *websocket.Conn) {
			play(c)
			if n == 1 {
				<-held
			}
		}
		e := f.open(t, func(c *Config) { c.Sessions = 1 })
		synctest.Wait()
		plays(t, begin(t, e, `{}`))
		start := time.Now()
		plays(t, begin(t, e, `{}`))
		if waited := time.Since(start); waited != closeWait {
			t.Errorf("the next session came after %v, want %v", waited, closeWait)
		}
	})
}

// What a server says as a session begins: it is heard although the first word was to be the client's.
func TestRefusedSessions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.serve = func(n int, c *websocket.Conn) {
			if n != 1 {
				play(c)
				return
			}
			send(c, `{"type":"error","data":{"code":"FACTORY_ERROR","message":"no screen","factory_name":"Browser"}}`)
		}
		e := f.open(t, nil)
		synctest.Wait()
		if _, err := env.Begin(t.Context(), e, json.RawMessage(`{}`), 1); err == nil || !strings.Contains(err.Error(), "FACTORY_ERROR: no screen") {
			t.Errorf("error %v", err)
		}
		plays(t, begin(t, e, `{}`))
	})
}

// A session that has lost its tools is not good for another episode.
func TestLostTools(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{schema: `{"type":"object","properties":{"type":{"const":"call_tool"}}}`}
		f.serve = func(n int, c *websocket.Conn) {
			for {
				kind, data, err := receive(c)
				switch {
				case err != nil || kind == "close":
					return
				case kind == "reset":
					send(c, `{"type":"observation","data":{"observation":{"text":"hello"}}}`)
				case string(data["type"]) == `"list_tools"`:
					send(c, `{"type":"observation","data":{"observation":{"tools":[{"name":"look","input_schema":{"type":"object"}}]}}}`)
				case n == 1:
					send(c, `{"type":"observation","data":{"observation":{"error":{"error_type":"transport_error","message":"gone"}}}}`)
				default:
					send(c, `{"type":"observation","data":{"observation":{"result":"a door"}}}`)
				}
			}
		}
		e := f.open(t, func(c *Config) { c.Episodes = 10 })
		look := env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{{ID: "c", Name: "look", Arguments: `{}`}}}
		s := begin(t, e, `{}`)
		if _, err := s.Reply(t.Context(), look); err == nil || !strings.Contains(err.Error(), "lost its tools: gone") {
			t.Errorf("error %v", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		if turn, err := begin(t, e, `{}`).Reply(t.Context(), look); err != nil || turn.Messages[0].Content != "a door" {
			t.Errorf("the next episode: %+v, %v", turn, err)
		}
	})
}

// An answer that nobody has asked for is no answer to what is asked next.
func TestUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := &fake{}
		f.serve = func(n int, c *websocket.Conn) {
			if n == 1 {
				_, _, _ = c.Read(context.Background())
				send(c, `{"type":"observation","data":{"observation":{"text":"hello"}}}`)
				send(c, `{"type":"observation","data":{"observation":{"text":"won"},"reward":1,"done":true}}`)
			}
			play(c)
		}
		e := f.open(t, nil)
		synctest.Wait()
		s := begin(t, e, `{}`)
		synctest.Wait()
		if _, _, err := say(t, s, "x"); err == nil || !strings.Contains(err.Error(), errUnasked.Error()) {
			t.Errorf("error %v", err)
		}
	})
}

// At the start it is said what is wrong with the server, and one that is only slow to come is waited for.
func TestStart(t *testing.T) {
	answer := func(path, text string) func(http.ResponseWriter, *http.Request) {
		return func(w http.ResponseWriter, r *http.Request) {
			if text := map[string]string{"/health": `{"status":"healthy"}`, "/schema": `{"action":` + sayAction + `}`, path: text}[r.URL.Path]; text != "" {
				_, _ = w.Write([]byte(text))
				return
			}
			http.NotFound(w, r)
		}
	}
	for name, test := range map[string]struct {
		handler func(http.ResponseWriter, *http.Request)
		want    string
	}{
		"a web page":       {answer("/health", "<html>"), "GET /health: no answer of an OpenEnv server"},
		"another server":   {http.NotFound, "404"},
		"unhealthy":        {answer("/health", `{"status":"unhealthy"}`), "unhealthy"},
		"no schema":        {answer("/schema", ""), "GET /schema"},
		"a strange schema": {answer("/schema", `{"action":{"type":"string"}}`), "JSON Schema of an object"},
		"no WebSocket":     {answer("", ""), "404 Not Found to the upgrade of /ws"},
		"much":             {answer("/health", `"`+strings.Repeat("x", 70<<10)+`"`), "reply_kb"},
	} {
		t.Run(name, func(t *testing.T) {
			s := httptest.NewServer(http.HandlerFunc(test.handler))
			defer s.Close()
			cfg := Defaults()
			cfg.StartS, cfg.ReplyKB = 0.5, 64
			if _, err := New("mine", s.URL, "", cfg); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
	t.Run("nobody", func(t *testing.T) {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		cfg := Defaults()
		cfg.StartS = 0.3
		if _, err := New("mine", "http://"+l.Addr().String(), "", cfg); err == nil || !strings.Contains(err.Error(), "refused") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("late", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			f := &fake{down: true, version: "7"}
			time.AfterFunc(30*time.Second, func() {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.down = false
			})
			e := f.open(t, nil)
			if v := e.Info().Version; !strings.HasPrefix(v, "7-") {
				t.Errorf("version %q", v)
			}
			plays(t, begin(t, e, `{}`))
		})
	})
}

// The token goes with every request, and nowhere in the clear.
func TestToken(t *testing.T) {
	file := t.TempDir() + "/token"
	if err := os.WriteFile(file, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var without []string
	f := &fake{}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer s3cret" {
			without = append(without, r.URL.Path)
		}
		switch r.URL.Path {
		case "/base/health":
			_, _ = w.Write([]byte(`{"status":"healthy"}`))
		case "/base/schema":
			_, _ = w.Write([]byte(`{"action":` + sayAction + `}`))
		case "/base/ws":
			f.session(w, r)
		}
	}))
	defer s.Close()
	cfg := Defaults()
	cfg.TokenFile = file
	e, err := New("mine", s.URL+"/base/", "", cfg)
	if err != nil {
		t.Fatal(err)
	}
	plays(t, begin(t, e, `{}`))
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
	if len(without) > 0 {
		t.Errorf("without the token: %v", without)
	}
	for target, want := range map[string]string{
		"http://example.com": "cleartext", "http://u:p@localhost": "password", "ws://localhost": "want openenv:<url>", "localhost:8000": "want openenv:<url>",
	} {
		if _, err := New("mine", target, "", cfg); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", target, err, want)
		}
	}
}
