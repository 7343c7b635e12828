package envserver

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/envserver/env"
)

// calculator is an environment with a tool.
type calculator struct{ game }

func (c *calculator) Start(context.Context, json.RawMessage, int64) (env.Episode, error) {
	return &sum{match: match{game: &c.game}}, nil
}

type sum struct {
	match
	added int
}

type AddArgs struct {
	_ struct{} `tool:"Add two numbers."`
	A int      `json:"a"`
	B int      `json:"b"`
}

func (s *sum) Add(_ context.Context, args AddArgs) (string, error) {
	s.added++
	return fmt.Sprint(args.A + args.B), nil
}

func (s *sum) Done() bool { return s.added == 2 }

func TestToolCalls(t *testing.T) {
	call := func(json string) string { return "<tool_call>" + json + "</tool_call>" }
	add := call(`{"name": "Add", "arguments": {"a": 2, "b": 3}}`)
	m := says(tokenizer(t),
		"let me see "+add,
		call(`{"name": "Add", "arguments": `)+call(`{"arguments": {}}`)+call(`{"name": "Add"}`),
		call(`{"name": "Sub", "arguments": {}}`)+call(`{"name": "Add", "arguments": {"a": "x", "b": 1}}`)+"<tool_call>"+`{"name": "Add", "arguments": {"a": 2, "b": 3}}`,
		add+add)
	task := testTask()
	task.MaxTokens, task.MaxRolloutTokens = 500, 10_000
	c := &calculator{game{info: env.Info{MaxTurns: 9}}}
	trace := playOne(t, testPlayer(t, c, m), task)
	scored(t, trace)
	var answers []string
	for _, n := range trace.Nodes {
		if n.Role == "tool" {
			answers = append(answers, n.ToolCallID+" "+n.Content)
		}
	}
	for i, want := range []string{
		"call_0_0 5", "call_1_0 error: the tool call cannot be read: unexpected end", "call_1_1 error: the tool call cannot be read: it has no name",
		"call_1_2 error: the tool call cannot be read: it has no arguments", "call_2_0 error: there is no tool", "call_2_1 error: arguments of Add",
		"call_2_2 error: the tool call cannot be read: </tool_call> is missing", "call_3_0 5",
	} {
		if i >= len(answers) || !strings.HasPrefix(answers[i], want) {
			t.Fatalf("answer %d is not %q:\n%s", i, want, strings.Join(answers, "\n"))
		}
	}
	if len(answers) != 8 {
		t.Fatalf("%d answers: the last call came after the end", len(answers))
	}
	first := trace.Nodes[2]
	if len(first.ToolCalls) != 1 || first.ToolCalls[0].Name != "Add" || first.ToolCalls[0].Arguments != `{"a": 2, "b": 3}` {
		t.Fatalf("calls %+v of %q", first.ToolCalls, first.Content)
	}
	if system := trace.Nodes[0]; system.Role != "system" || !strings.Contains(system.Content, `"Add two numbers."`) || system.TokenIDs.Len() == 0 {
		t.Fatalf("the model is not told of its tools: %q", system.Content)
	}
}

func TestTextIsNoCallWithoutTools(t *testing.T) {
	trace := playOne(t, testPlayer(t, &game{}, says(tokenizer(t), "<tool_call>")), testTask())
	scored(t, trace)
	if len(trace.Nodes[1].ToolCalls) > 0 {
		t.Fatal("a call of an environment without tools")
	}
}
