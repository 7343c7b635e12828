package mcptools_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/mcptools"
)

// Sums asks for a sum, and the policy has the tools of an MCP server to find it.
type Sums struct{ Server mcptools.Server }

func (Sums) Info() env.Info { return env.Info{Name: "sums", Version: "1", Train: 10, MaxTurns: 4} }

func (Sums) Task(_ env.Split, index int) (json.RawMessage, error) {
	return fmt.Appendf(nil, `{"n": %d}`, index), nil
}

// Start opens a session for the episode, which has its tools, and ends it.
func (s Sums) Start(ctx context.Context, task json.RawMessage, _ int64) (env.Episode, error) {
	e := &sum{}
	if err := json.Unmarshal(task, e); err != nil {
		return nil, err
	}
	var err error
	e.Session, err = mcptools.Open(ctx, s.Server)
	return e, err
}

type sum struct {
	*mcptools.Session `json:"-"` // Tools, CallTool and Close

	N     int
	right bool
}

func (s *sum) Prompt() []env.Message { return []env.Message{env.User(fmt.Sprintf("40 + %d?", s.N))} }

func (s *sum) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	s.right = strings.Contains(reply.Content, fmt.Sprint(40+s.N))
	return env.Turn{Done: true}, nil
}

func (s *sum) Score(context.Context) (env.Score, error) {
	return env.Score{Rewards: env.Rewards{"right": env.Value(env.Bool(s.right))}}, nil
}

// An environment with the tools of an MCP server, played by hand.
func Example() {
	type args struct{ A, B int }
	calculator := mcp.NewServer(&mcp.Implementation{Name: "calculator"}, nil)
	mcp.AddTool(calculator, &mcp.Tool{Name: "add", Description: "Add two numbers."}, func(_ context.Context, _ *mcp.CallToolRequest, a args) (*mcp.CallToolResult, any, error) {
		return &mcp.CallToolResult{Content: []mcp.Content{&mcp.TextContent{Text: fmt.Sprint(a.A + a.B)}}}, nil, nil
	})
	web := httptest.NewServer(mcp.NewStreamableHTTPHandler(func(*http.Request) *mcp.Server { return calculator }, nil))
	defer web.Close()

	ctx := context.Background()
	task, _ := Sums{}.Task(env.Train, 2)
	episode, err := env.Begin(ctx, Sums{mcptools.Server{URL: web.URL}}, task, 0)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer episode.Close()
	fmt.Println(episode.Prompt()[0].Content, episode.Tools()[0].Name)
	turn, _ := episode.Reply(ctx, env.Message{ToolCalls: []env.ToolCall{{ID: "1", Name: "add", Arguments: `{"A": 40, "B": 2}`}}})
	fmt.Println(turn.Messages[0].Content)
	_, _ = episode.Reply(ctx, env.Assistant("It is 42."))
	score, _ := episode.Score(ctx)
	fmt.Println(*score.Rewards.Total())
	// Output:
	// 40 + 2? add
	// 42
	// 1
}
