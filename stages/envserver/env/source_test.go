package env

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
)

// source is an episode with tools from elsewhere, beside a method that has the form of one.
type source struct {
	drawing
	tools  []Tool
	called []string
}

func (s *source) Tools() []Tool { return s.tools }

func (s *source) CallTool(_ context.Context, name string, args json.RawMessage) (ToolResult, error) {
	s.called = append(s.called, name+string(args))
	switch name {
	case "refuse":
		return ToolResult{}, Refuse("not now")
	case "fail":
		return ToolResult{}, errors.New("lost")
	case "panic":
		panic("boom")
	}
	return ToolResult{Text: "done"}, nil
}

func TestToolSource(t *testing.T) {
	schema := json.RawMessage(`{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"],"additionalProperties":false}`)
	s := &source{}
	for _, name := range []string{"go", "refuse", "fail", "panic"} {
		s.tools = append(s.tools, Tool{Name: name, Schema: schema})
	}
	if tools, err := Tools(s); err != nil || len(tools) != 4 {
		t.Fatalf("tools %+v, %v", tools, err)
	}
	for _, test := range []struct{ name, args, want, failure string }{
		{"go", `{"n": 1}`, "done", ""},
		{"go", `{"n": "1"}`, "error: arguments of go", ""},
		{"go", `{"n": 1, "n": 2}`, "twice", ""},
		{"go", `{}`, "error: arguments of go", ""},
		{"Draw", `{}`, "error: there is no tool", ""},
		{"refuse", `{"n": 1}`, "error: not now", ""},
		{"fail", `{"n": 1}`, "", "lost"},
		{"panic", `{"n": 1}`, "", "boom"},
	} {
		m, err := Call(t.Context(), s, ToolCall{ID: "c", Name: test.name, Arguments: test.args})
		if test.failure != "" && (err == nil || !strings.Contains(err.Error(), test.failure)) || test.failure == "" && (err != nil || !strings.Contains(m.Content, test.want)) {
			t.Errorf("%s%s: %q, %v", test.name, test.args, m.Content, err)
		}
	}
	if got := strings.Join(s.called, " "); got != `go{"n": 1} refuse{"n": 1} fail{"n": 1} panic{"n": 1}` {
		t.Errorf("called %s", got)
	}
	for what, tools := range map[string][]Tool{
		"two tools":      {{Name: "a", Schema: schema}, {Name: "a", Schema: schema}},
		"decode schema":  {{Name: "a", Schema: json.RawMessage(`[]`)}},
		"resolve schema": {{Name: "a", Schema: json.RawMessage(`{"$ref":"#/nowhere"}`)}},
	} {
		if _, err := Tools(&source{tools: tools}); err == nil || !strings.Contains(err.Error(), what) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
