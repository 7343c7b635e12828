package envserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// A toolFormat is how a model is told of tools, and how it calls them.
type toolFormat interface {
	// prompt is the text for the system message.
	prompt(tools []env.Tool) (string, error)
	// parse finds the calls in a reply.
	parse(reply string) []parsedCall
}

// parsedCall is a call in a reply; err says what is wrong with one that cannot be read, which has no name.
type parsedCall struct {
	name, arguments string
	err             error
}

const (
	callOpen  = "<tool_call>"
	callClose = "</tool_call>"
)

// hermes is the format of Hermes and Qwen: <tool_call>{"name": …, "arguments": {…}}</tool_call>.
type hermes struct{}

func (hermes) prompt(tools []env.Tool) (string, error) {
	var b strings.Builder
	b.WriteString("# Tools\n\nYou may call one or more functions. Their signatures, within <tools></tools>:\n<tools>\n")
	for _, t := range tools {
		line, err := json.Marshal(map[string]any{"type": "function", "function": map[string]any{
			"name": t.Name, "description": t.Description, "parameters": t.Schema}})
		if err != nil {
			return "", fmt.Errorf("schema of tool %s: %w", t.Name, err)
		}
		b.Write(line)
		b.WriteByte('\n')
	}
	b.WriteString("</tools>\n\nFor each call return a JSON object with the function's name and arguments:\n" +
		callOpen + "\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n" + callClose)
	return b.String(), nil
}

func (hermes) parse(reply string) []parsedCall {
	var calls []parsedCall
	for {
		_, rest, ok := strings.Cut(reply, callOpen)
		if !ok {
			return calls
		}
		text, after, closed := strings.Cut(rest, callClose)
		call := parseCall(text)
		if !closed && call.err == nil {
			call = parsedCall{arguments: strings.TrimSpace(text), err: fmt.Errorf("%s is missing", callClose)}
		}
		calls, reply = append(calls, call), after
	}
}

func parseCall(text string) parsedCall {
	var call struct {
		Name      *string         `json:"name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	err := json.Unmarshal([]byte(text), &call)
	switch {
	case err != nil:
	case call.Name == nil:
		err = errors.New("it has no name")
	case call.Arguments == nil:
		err = errors.New("it has no arguments")
	default:
		return parsedCall{name: *call.Name, arguments: string(call.Arguments)}
	}
	return parsedCall{arguments: strings.TrimSpace(text), err: err}
}
