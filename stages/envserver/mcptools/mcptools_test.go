package mcptools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/prl-project/prl/stages/envserver/env"
)

// asServer is the variable that makes the test binary an MCP server: how it behaves.
const asServer = "MCPTOOLS_SERVER"

func TestMain(m *testing.M) {
	switch behaviour := os.Getenv(asServer); behaviour {
	case "":
		os.Exit(m.Run())
	case "mute":
		time.Sleep(time.Hour) // it ends with its parent
	case "rude":
		fmt.Println("hello, I am no MCP server")
		fmt.Fprintln(os.Stderr, "a word of farewell")
		os.Exit(3)
	default:
		if err := newServer(nil).Run(context.Background(), &mcp.StdioTransport{}); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		if behaviour == "stays" {
			time.Sleep(time.Hour) // although its input has ended
		}
	}
}

type addArgs struct {
	A int `json:"a" jsonschema:"the first"`
	B int `json:"b"`
}

type nothing struct{}

// newServer is a server as the SDK makes it, with tools that do well and tools that do not. It counts for itself. What hangs goes on
// at last; nil for never.
func newServer(last <-chan struct{}) *mcp.Server {
	s := mcp.NewServer(&mcp.Implementation{Name: "tester", Version: "1"}, nil)
	text := func(format string, args ...any) *mcp.CallToolResult {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprintf(format, args...)}}}
	}
	mcp.AddTool(s, &mcp.Tool{Name: "add", Description: "Add numbers."}, func(_ context.Context, _ *mcp.CallToolRequest, a addArgs) (*mcp.CallToolResult, any, error) {
		return text("%d", a.A+a.B), nil, nil
	})
	count := 0
	mcp.AddTool(s, &mcp.Tool{Name: "count"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		count++
		return text("%d", count), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "refuse"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		return nil, nil, errors.New("not today")
	})
	mcp.AddTool(s, &mcp.Tool{Name: "paint"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{
			&mcp.TextContent{Text: "two lines"}, &mcp.ImageContent{MIMEType: "image/png", Data: []byte("a picture")},
			&mcp.AudioContent{MIMEType: "audio/wav", Data: []byte("beep")}, &mcp.ResourceLink{Name: "notes", URI: "file:///notes"},
			&mcp.EmbeddedResource{Resource: &mcp.ResourceContents{URI: "file:///a", Text: "what is in a"}},
		}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "structure"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, map[string]int, error) {
		return nil, map[string]int{"n": 5}, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "huge"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		return text("%s", strings.Repeat("x", mostBytes)), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "odd"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.ImageContent{MIMEType: "text/html", Data: []byte("<p>")}}}, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "die"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		fmt.Fprintln(os.Stderr, "last words")
		os.Exit(1)
		return nil, nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "hang"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		<-last // whatever the context says
		return text("late"), nil, nil
	})
	mcp.AddTool(s, &mcp.Tool{Name: "children"}, func(context.Context, *mcp.CallToolRequest, nothing) (*mcp.CallToolResult, any, error) {
		child := exec.Command("sleep", "1000")
		child.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		if err := child.Start(); err != nil {
			return nil, nil, err
		}
		return text("%d %d", os.Getpid(), child.Process.Pid), nil, nil
	})
	return s
}

// local is the test binary as a server.
func local(t testing.TB, behaviour string) Server {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Server{Command: []string{self}, Env: []string{asServer + "=" + behaviour}}
}

// remote is a server behind HTTP, which has a state for each session.
func remote(t testing.TB) Server {
	t.Helper()
	last := make(chan struct{})
	s := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newServer(last) }, nil))
	t.Cleanup(func() {
		close(last)
		s.CloseClientConnections()
		s.Close()
	})
	return Server{URL: s.URL}
}

func open(t testing.TB, s Server) *Session {
	t.Helper()
	session, err := Open(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = session.Close() })
	return session
}

// episode has the tools of a session, as an author would write it.
type episode struct {
	env.ToolSource
}

func (episode) Prompt() []env.Message { return []env.Message{env.User("go")} }

func (episode) Reply(context.Context, env.Message) (env.Turn, error) {
	return env.Turn{Done: true}, nil
}

func (episode) Score(context.Context) (env.Score, error) { return env.Score{}, nil }

func call(t testing.TB, s *Session, name, arguments string) (env.Message, error) {
	t.Helper()
	return env.Call(t.Context(), episode{s}, env.ToolCall{ID: "c", Name: name, Arguments: arguments})
}

// Both kinds of servers: tools are listed and called, what they say is wrong is told to the model.
func TestToolsOfServers(t *testing.T) {
	for name, server := range map[string]func(testing.TB) Server{
		"stdio": func(t testing.TB) Server { return local(t, "serve") }, "http": remote,
	} {
		t.Run(name, func(t *testing.T) {
			config := server(t)
			config.Alt = func(tool string, i env.Image) string { return tool + " of " + i.MIME }
			s := open(t, config)
			tools, err := env.Tools(episode{s})
			if err != nil || len(tools) != 10 || tools[0].Name != "add" || tools[0].Description != "Add numbers." {
				t.Fatalf("tools %+v, %v", tools, err)
			}
			var schema jsonschema.Schema
			if err := json.Unmarshal(tools[0].Schema, &schema); err != nil || schema.Properties["a"].Description != "the first" {
				t.Errorf("schema %s, %v", tools[0].Schema, err)
			}
			for _, test := range []struct{ tool, arguments, want string }{
				{"add", `{"a": 40, "b": 2}`, "42"},
				{"add", `{"a": 40}`, "error: arguments of add: "},
				{"add", `{"a": "40", "b": 2}`, "error: arguments of add: "},
				{"add", `{"a": 40, "b": 2, "c": 1}`, "error: arguments of add: "},
				{"add", `{"a": 40`, "error: arguments of add: "},
				{"refuse", `{}`, "error: not today"},
				{"structure", `{}`, `{"n":5}`},
				{"nothing", `{}`, `error: there is no tool "nothing"`},
				{"count", `{}`, "1"},
				{"count", `{}`, "2"},
				{"paint", `{}`, "two lines\n(audio, audio/wav, 4 bytes)\nnotes file:///notes\nwhat is in a"},
			} {
				m, err := call(t, s, test.tool, test.arguments)
				if err != nil || !strings.HasPrefix(m.Content, test.want) || !strings.HasPrefix(test.want, "error: ") && m.Content != test.want {
					t.Errorf("%s%s: %q, %v, want %q", test.tool, test.arguments, m.Content, err, test.want)
				}
				if test.tool == "paint" && (len(m.Images) != 1 || string(m.Images[0].Data) != "a picture" || m.Images[0].Alt != "paint of image/png") {
					t.Errorf("images %+v", m.Images)
				}
			}
			if m, err := call(t, open(t, config), "count", `{}`); err != nil || m.Content != "1" {
				t.Errorf("another session counts %q, %v", m.Content, err)
			}
		})
	}
}

// A tool that the server itself does not know, as after a change of its tools: the model is told.
func TestInvalidParametersAreToldToTheModel(t *testing.T) {
	s := open(t, remote(t))
	_, err := s.CallTool(t.Context(), "gone", json.RawMessage(`{}`))
	var refusal *env.Refusal
	if !errors.As(err, &refusal) || !strings.Contains(refusal.Message, "gone") {
		t.Errorf("%v", err)
	}
}

// A server that dies, hangs, floods or says what nobody can show is an error of the infrastructure, and soon.
func TestFaultsOfServers(t *testing.T) {
	for _, test := range []struct {
		name, tool string
		server     func(testing.TB) Server
		want       string
	}{
		{"dies", "die", func(t testing.TB) Server { return local(t, "serve") }, "it printed: last words"},
		{"hangs", "hang", func(t testing.TB) Server { return local(t, "serve") }, "no answer in 500ms (timeout_s)"},
		{"hangs behind http", "hang", remote, "no answer in 500ms (timeout_s)"},
		{"shows what is no image", "odd", remote, "text/html"},
	} {
		t.Run(test.name, func(t *testing.T) {
			config := test.server(t)
			s := open(t, config)
			s.server.TimeoutS = 0.5
			m, err := call(t, s, test.tool, `{}`)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("%+v, %v, want %q", m, err, test.want)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	whole := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newServer(nil) }, &mcp.StreamableHTTPOptions{JSONResponse: true}))
	defer whole.Close()
	for name, server := range map[string]Server{"stdio": local(t, "serve"), "events": remote(t), "one answer": {URL: whole.URL}} {
		t.Run("floods, "+name, func(t *testing.T) {
			if m, err := call(t, open(t, server), "huge", `{}`); err == nil {
				t.Errorf("%d bytes are taken", len(m.Content))
			}
		})
	}
	t.Run("a remote one goes away", func(t *testing.T) {
		handler := mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return newServer(nil) }, nil)
		var gone atomic.Bool
		web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if gone.Load() {
				http.Error(w, "gone", http.StatusBadGateway)
				return
			}
			handler.ServeHTTP(w, r)
		}))
		defer web.Close()
		s := open(t, Server{URL: web.URL})
		gone.Store(true)
		if m, err := call(t, s, "add", `{"a": 1, "b": 1}`); err == nil || !strings.Contains(err.Error(), web.URL) {
			t.Errorf("%+v, %v", m, err)
		}
	})
}

func TestServersThatDoNotBegin(t *testing.T) {
	last := make(chan struct{})
	mute := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-last }))
	defer mute.Close()
	defer close(last)
	only := local(t, "serve")
	only.Only = []string{"add", "subtract"}
	for name, test := range map[string]struct {
		server Server
		want   string
	}{
		"no program":     {Server{Command: []string{"/nowhere/server"}}, "/nowhere/server"},
		"mute":           {local(t, "mute"), "it has not begun in 300ms"},
		"mute, http":     {Server{URL: mute.URL}, "it has not begun in 300ms"},
		"no MCP server":  {local(t, "rude"), "a word of farewell"},
		"without a tool": {only, "no tool subtract"},
		"nothing":        {Server{}, "a command or a url"},
		"two":            {Server{Command: []string{"a"}, URL: "http://localhost/"}, "a command or a url"},
		"no URL":         {Server{URL: "localhost:3000"}, "want one such as"},
		"a password":     {Server{URL: "http://me:hush@localhost/"}, "without a password"},
		"no time":        {Server{URL: "http://localhost/", TimeoutS: 0.01}, "timeout_s"},
		"no variable":    {Server{Command: []string{"a"}, Env: []string{"A"}}, "NAME=value"},
	} {
		t.Run(name, func(t *testing.T) {
			if strings.HasPrefix(name, "mute") {
				test.server.TimeoutS = 0.3
			}
			_, err := Open(t.Context(), test.server)
			if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "hush") {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

// A local server ends with its session, and all that it has started, whether it wants to or not.
func TestNothingIsLeftOfALocalServer(t *testing.T) {
	for _, behaviour := range []string{"serve", "stays"} {
		s := open(t, local(t, behaviour))
		m, err := call(t, s, "children", `{}`)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(s.Close(), s.Close()); err != nil {
			t.Fatal(err)
		}
		for _, text := range strings.Fields(m.Content) {
			pid, err := strconv.Atoi(text)
			if err != nil {
				t.Fatal(err)
			}
			gone := func() bool {
				state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
				return err != nil || strings.Contains(string(state), ") Z ")
			}
			for deadline := time.Now().Add(10 * time.Second); !gone(); time.Sleep(10 * time.Millisecond) {
				if time.Now().After(deadline) {
					t.Fatalf("%s: process %d is still there", behaviour, pid)
				}
			}
		}
	}
}

// Variables of ours, which may be secrets, stay here; those that are given go to the server.
func TestVariablesOfAServer(t *testing.T) {
	t.Setenv("PRL_TOKEN", "hush")
	p, err := start(Server{Command: []string{"sh", "-c", `echo "${PRL_TOKEN-unset} $GIVEN" >&2; cat`}, Env: []string{"GIVEN=yes"}})
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	close(ended)
	p.end(ended)
	if got := p.said(); got != "unset yes" {
		t.Errorf("it has %q", got)
	}
}

func TestOnlySomeTools(t *testing.T) {
	config := remote(t)
	config.Only = []string{"count", "add"}
	s := open(t, config)
	if got := s.Tools(); len(got) != 2 || got[0].Name != "add" || got[1].Name != "count" {
		t.Errorf("%+v", got)
	}
}
