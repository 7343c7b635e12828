package openenv

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// tool is one of the server's as it describes it. Which name the schema has depends on the way that it was asked for.
type tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Snake       json.RawMessage `json:"input_schema"`
	Camel       json.RawMessage `json:"inputSchema"`
}

// listTools asks for the tools of a session.
func listTools(ctx context.Context, in *session, how actions) ([]env.Tool, error) {
	var said struct {
		Tools    []tool `json:"tools"`
		Metadata struct{ Error string }
	}
	text, err := json.RawMessage(nil), error(nil)
	if how.calls {
		var a answer
		var r result
		if a, err = in.ask(ctx, "step", map[string]any{"type": "list_tools"}); err == nil {
			r, err = observed(a)
			text = r.Observation
		}
	} else {
		text, err = in.rpc(ctx, "tools/list", map[string]any{})
	}
	if err != nil {
		return nil, fmt.Errorf("list the tools: %w", err)
	}
	if err := json.Unmarshal(text, &said); err != nil {
		return nil, fmt.Errorf("list the tools: %.200s: %w", text, err)
	}
	if said.Metadata.Error != "" {
		return nil, fmt.Errorf("list the tools: %s", short(said.Metadata.Error))
	}
	if len(said.Tools) == 0 {
		return nil, errors.New("the server has no tools: set actions to text or step")
	}
	var tools []env.Tool
	for _, t := range said.Tools {
		schema := t.Snake
		if len(schema) == 0 || string(schema) == "null" {
			schema = t.Camel
		}
		var is struct{ Type string }
		if json.Unmarshal(schema, &is) != nil || is.Type == "" {
			schema = json.RawMessage(`{"type":"object"}`) // it does not say
		}
		tools = append(tools, env.Tool{Name: t.Name, Description: t.Description, Schema: schema})
	}
	return tools, nil
}

// rpcError is an error of JSON-RPC.
type rpcError struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

func (e *rpcError) Error() string {
	return fmt.Sprintf("the server answered %d: %s", e.Code, short(e.Message))
}

// methodNotFound is JSON-RPC's code for a server that does not know tools.
const methodNotFound = -32601

// rpc asks by JSON-RPC, past the environment's step.
func (s *session) rpc(ctx context.Context, method string, params any) (json.RawMessage, error) {
	a, err := s.ask(ctx, "mcp", map[string]any{"jsonrpc": "2.0", "id": 1, "method": method, "params": params})
	if err != nil {
		return nil, err
	}
	var said struct {
		Result json.RawMessage `json:"result"`
		Error  *rpcError       `json:"error"`
	}
	if err := json.Unmarshal(a.Data, &said); a.Type != "mcp" || err != nil {
		return nil, fmt.Errorf("%s: the server answered %.200s, which is no JSON-RPC", method, a.Data)
	}
	if said.Error != nil {
		return nil, said.Error
	}
	return said.Result, nil
}

// called is what an observation says of a call.
type called struct {
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Type    string `json:"error_type"`
		Message string `json:"message"`
	} `json:"error"`
}

// content is the result of a tool of MCP.
type content struct {
	Content []struct {
		Type  string `json:"type"`
		Text  string `json:"text"`
		Data  []byte `json:"data"`
		Snake string `json:"mime_type"`
		Camel string `json:"mimeType"`
	} `json:"content"`
	Snake    json.RawMessage `json:"structured_content"`
	Camel    json.RawMessage `json:"structuredContent"`
	Data     json.RawMessage `json:"data"`
	IsError  bool            `json:"is_error"`
	IsFailed bool            `json:"isError"`
}

// shown is the result of a tool as the policy sees it: its texts and images, else its structured content, else as it is.
// An error is what the tool says of a wrong call.
func shown(text json.RawMessage, alt string) (env.ToolResult, error) {
	var plain string
	if len(text) == 0 || string(text) == "null" {
		return env.ToolResult{}, nil
	}
	if json.Unmarshal(text, &plain) == nil {
		return env.ToolResult{Text: plain}, nil
	}
	var c content
	if json.Unmarshal(text, &c) != nil || c.Content == nil && c.Snake == nil && c.Camel == nil {
		return env.ToolResult{Text: compact(text)}, nil
	}
	var r env.ToolResult
	var lines []string
	for _, part := range c.Content {
		switch part.Type {
		case "text":
			lines = append(lines, part.Text)
		case "image":
			r.Images = append(r.Images, env.Image{MIME: cmp.Or(part.Camel, part.Snake), Data: part.Data, Alt: alt})
		default:
			lines = append(lines, fmt.Sprintf("[%s]", part.Type))
		}
	}
	r.Text = strings.Join(lines, "\n")
	if len(c.Content) == 0 {
		for _, other := range []json.RawMessage{c.Snake, c.Camel, c.Data} {
			if len(other) > 0 && string(other) != "null" {
				r.Text = compact(other)
				break
			}
		}
	}
	if c.IsError || c.IsFailed {
		return r, env.Refuse("%s", r.Text)
	}
	return r, nil
}

func compact(text json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, text) != nil {
		return string(text)
	}
	return b.String()
}
