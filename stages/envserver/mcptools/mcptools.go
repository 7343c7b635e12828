// Package mcptools gives an episode the tools of an MCP server (https://modelcontextprotocol.io), local or remote.
//
// What holds: the policy can call the server's tools and nothing else of it; what a tool says is wrong (isError, or invalid
// parameters) is told to the model as a refusal, and a server that dies, hangs or breaks the protocol is an error of the
// infrastructure, in bounded time; a local server ends with the session, with all processes that it has started.
//
// Open begins a session, which is an [env.ToolSource] and may be used by many goroutines at once. Where the server keeps a state
// for each session, an episode has one of its own: Start opens it, and the episode embeds it, which also closes it:
//
//	type episode struct {
//		*mcptools.Session
//		…
//	}
//
// Where it has none, the environment opens one session, and its episodes embed that as an env.ToolSource, which they do not
// close. A session that has failed stays so; a shared one should be opened anew then.
//
// The author answers for the rest of the contract of package env: tools of a server are as repeatable as the server is.
package mcptools

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Server says which MCP server, and what of it.
type Server struct {
	// Command and its arguments start a local server, which speaks over its standard input and output.
	Command []string `toml:"command" json:"command"`
	// Env are variables for it, NAME=value, beside those of this process.
	Env []string `toml:"env" json:"env"`
	// Folder is where it runs; empty for here.
	Folder string `toml:"folder" json:"folder"`
	// URL is a remote server, spoken to over streamable HTTP; in place of a command.
	URL string `toml:"url" json:"url"`
	// Only are the tools that the policy may call; empty for all.
	Only []string `toml:"only" json:"only"`
	// TimeoutS is how many seconds the start, and each call, may take; 0.1 to 3600, and 0 for 20.
	TimeoutS float64 `toml:"timeout_s" json:"timeout_s"`
	// Name is the environment in whose name what a local server prints is logged, at level debug; empty for none.
	Name string `toml:"-" json:"-"`
	// Client speaks HTTP, and adds what the server wants to know of whoever calls; nil for one that adds nothing.
	Client *http.Client `toml:"-" json:"-"`
	// Alt puts an image of a tool's answer into words, for models that read only text; without it they cannot play on.
	Alt func(tool string, image env.Image) string `toml:"-" json:"-"`
}

// Validate returns what is wrong, with what to change.
func (s Server) Validate() error {
	if (len(s.Command) == 0) == (s.URL == "") {
		return errors.New("an MCP server needs a command or a url: give one of them")
	}
	if u, err := url.Parse(s.URL); s.URL != "" && (err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil) {
		return errors.New("the url of an MCP server: want one such as http://localhost:3000/mcp, without a password in it")
	}
	if s.TimeoutS != 0 && !(s.TimeoutS >= 0.1 && s.TimeoutS <= 3600) {
		return fmt.Errorf("timeout_s = %v: want 0.1 to 3600", s.TimeoutS)
	}
	for _, v := range s.Env {
		if name, _, ok := strings.Cut(v, "="); !ok || name == "" {
			return errors.New("env: want variables such as NAME=value")
		}
	}
	return nil
}

func (s Server) timeout() time.Duration {
	if s.TimeoutS == 0 {
		return 20 * time.Second
	}
	return time.Duration(s.TimeoutS * float64(time.Second))
}

// What a server may say at most.
const (
	mostTools = 1000
	mostBytes = 12 << 20 // of one message: an image of the largest size, in base64, and more
)

// Session is an open session with a server.
type Session struct {
	server  Server
	session *mcp.ClientSession
	process *process // nil with a remote one
	tools   []env.Tool
	closing sync.Once
}

var _ env.ToolSource = (*Session)(nil)

// Open begins a session and asks for the tools. An error is one of the infrastructure.
func Open(ctx context.Context, server Server) (*Session, error) {
	if err := server.Validate(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, server.timeout(), fmt.Errorf("it has not begun in %v (timeout_s)", server.timeout()))
	defer cancel()
	s := &Session{server: server}
	if err := s.connect(ctx); err != nil {
		return nil, s.failure("start", errors.Join(err, s.Close()))
	}
	if err := s.list(ctx); err != nil {
		err = s.failure("ask for the tools of", reason(ctx, err))
		_ = s.Close() // it has failed anyway
		return nil, err
	}
	return s, nil
}

func (s *Session) connect(ctx context.Context) (err error) {
	var transport mcp.Transport
	if s.server.URL != "" {
		transport = &mcp.StreamableClientTransport{
			Endpoint: s.server.URL, HTTPClient: bounded(s.server.Client), MaxRetries: -1, DisableStandaloneSSE: true, MaxEventSize: mostBytes,
		}
	} else {
		if s.process, err = start(s.server); err != nil {
			return err
		}
		transport = &mcp.IOTransport{Reader: s.process.out, Writer: s.process.in, MaxLineLength: mostBytes}
	}
	client := mcp.NewClient(&mcp.Implementation{Name: "prl", Version: "1"}, &mcp.ClientOptions{Capabilities: &mcp.ClientCapabilities{}})
	s.session, err = client.Connect(ctx, transport, nil)
	return reason(ctx, err)
}

// reason is err, or why ctx ended where that was it.
func reason(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

func (s *Session) list(ctx context.Context) error {
	missing := slices.Clone(s.server.Only)
	for t, err := range s.session.Tools(ctx, nil) {
		if err != nil {
			return err
		}
		if len(s.tools) == mostTools {
			return fmt.Errorf("it has over %d tools", mostTools)
		}
		if len(s.server.Only) > 0 && !slices.Contains(s.server.Only, t.Name) {
			continue
		}
		missing = slices.DeleteFunc(missing, func(name string) bool { return name == t.Name })
		schema, err := json.Marshal(t.InputSchema)
		if err != nil {
			return fmt.Errorf("schema of tool %s: %w", t.Name, err)
		}
		s.tools = append(s.tools, env.Tool{Name: t.Name, Description: t.Description, Schema: schema})
	}
	if len(missing) > 0 {
		return fmt.Errorf("it has no tool %s, which only names", strings.Join(missing, ", "))
	}
	slices.SortFunc(s.tools, func(a, b env.Tool) int { return strings.Compare(a.Name, b.Name) })
	return nil
}

// failure says of an error which server it was, and what that printed last.
func (s *Session) failure(attempt string, err error) error {
	if s.server.URL != "" {
		return fmt.Errorf("%s the MCP server %s: %w", attempt, s.server.URL, err)
	}
	if said := s.process.said(); said != "" {
		err = fmt.Errorf("%w; it printed: %s", err, said)
	}
	return fmt.Errorf("%s the MCP server %s: %w", attempt, s.server.Command[0], err)
}

// Close ends the session, and a local server with all that it has started.
func (s *Session) Close() error {
	s.closing.Do(func() {
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if s.session != nil {
				_ = s.session.Close() // what it says of its end changes nothing
			}
		}()
		if s.process == nil {
			within(grace, ended)
		} else {
			s.process.end(ended)
		}
	})
	return nil
}
