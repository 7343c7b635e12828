package openenv

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs/wordle"
	"github.com/prl-project/prl/stages/envserver/serve"
)

// deadline ends a test that hangs.
const deadline = time.Minute

func usual() Config { return Config{Sessions: 8, Idle: time.Hour} }

// words is the environment wordle.
func words(t *testing.T, tool bool) env.Environment {
	t.Helper()
	cfg := wordle.Defaults()
	if cfg.Tool = tool; tool {
		cfg.Guesses = 20
	}
	e, err := wordle.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// running is a server that ends with the test.
type running struct {
	*Server
	url  string
	stop func() error
}

func start(t *testing.T, e env.Environment, cfg Config) running {
	t.Helper()
	s, err := New(t.Context(), serve.Served{Env: e, Limit: deadline}, cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx, listener) }()
	stop := func() error {
		cancel()
		select {
		case err := <-ended:
			ended <- err
			return err
		case <-time.After(deadline):
			t.Error("the server does not stop")
			return nil
		}
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
	return running{s, "http://" + listener.Addr().String(), stop}
}

// runPython runs a script with OpenEnv.
func runPython(t *testing.T, args ...string) {
	t.Helper()
	need.OpenEnv(t, "../../../../.cache/openenv")
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if out, err := exec.CommandContext(ctx, "../../../../.cache/openenv/bin/python", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// post sends a body and returns status and reply.
func (r running) post(t *testing.T, path, body string) (int, string) {
	t.Helper()
	return r.do(t, http.MethodPost, path, body)
}

func (r running) do(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, r.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	if r.cfg.Token != "" {
		request.Header.Set("Authorization", "Bearer "+r.cfg.Token)
	}
	reply, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer reply.Body.Close()
	data, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	return reply.StatusCode, string(data)
}

// client is a WebSocket of a test.
type client struct {
	t    *testing.T
	conn *websocket.Conn
}

func (r running) dial(t *testing.T, path string) client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	conn, _, err := websocket.Dial(ctx, r.url+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.CloseNow() })
	return client{t, conn}
}

// place is a client that has begun an episode. A session whose call has failed closes its episode before its place is free, so
// whoever comes then may be refused for a moment.
func (r running) place(t *testing.T) client {
	t.Helper()
	for until := time.Now().Add(deadline); ; {
		c := r.dial(t, "/ws")
		c.send(`{"type":"reset"}`)
		switch reply, err := c.read(); {
		case err != nil:
			t.Fatal(err)
		case strings.Contains(reply, `"done":false`):
			return c
		case !strings.Contains(reply, codeCapacity) || time.Now().After(until):
			t.Fatal(reply)
		}
	}
}

// await waits for something to happen.
func await(t *testing.T, happened <-chan struct{}) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(deadline):
		t.Fatal("it does not happen")
	}
}

func (c client) send(text string) {
	c.t.Helper()
	if err := c.conn.Write(c.t.Context(), websocket.MessageText, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// read is the next message, compact.
func (c client) read() (string, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), deadline)
	defer cancel()
	_, data, err := c.conn.Read(ctx)
	if err != nil {
		return "", err
	}
	var b bytes.Buffer
	if err := json.Compact(&b, data); err != nil {
		return "", err
	}
	return b.String(), nil
}

// ask sends a message and wants each of some texts in the reply.
func (c client) ask(text string, want ...string) string {
	c.t.Helper()
	c.send(text)
	reply, err := c.read()
	if err != nil {
		c.t.Fatalf("%s: %v", text, err)
	}
	for _, w := range want {
		if !strings.Contains(reply, w) {
			c.t.Errorf("%s: %q is missing in %s", text, w, reply)
		}
	}
	return reply
}

// ends wants the connection to be closed with a status.
func (c client) ends(want websocket.StatusCode, why string) {
	c.t.Helper()
	text, err := c.read()
	if err == nil {
		c.t.Fatalf("it goes on with %s", text)
	}
	if got := websocket.CloseStatus(err); got != want || !strings.Contains(err.Error(), why) {
		c.t.Errorf("closed by %v, want status %d %s", err, want, why)
	}
}
