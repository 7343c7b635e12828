package openenv

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/prl-project/prl/stages/envserver/env"
)

// invalidError is a request that is not as it should be, with entries as pydantic has them.
type invalidError struct{ errors []problem }

type problem struct {
	Type string   `json:"type"`
	Loc  []string `json:"loc"`
	Msg  string   `json:"msg"`
}

func (e *invalidError) Error() string {
	p := e.errors[0]
	return fmt.Sprintf("%v: %s", p.Loc, p.Msg)
}

func invalid(kind, field, format string, args ...any) error {
	return &invalidError{[]problem{{kind, []string{field}, fmt.Sprintf(format, args...)}}}
}

// decode reads JSON into v; an invalidError if it is of other types.
func decode(data []byte, v any) error {
	err := json.Unmarshal(data, v)
	var wrong *json.UnmarshalTypeError
	switch {
	case errors.As(err, &wrong):
		return invalid("type_error", wrong.Field, "want %v, not a %s", wrong.Type, wrong.Value)
	case err != nil:
		return invalid("json_invalid", "", "%v", err)
	}
	return nil
}

// only returns an error for fields of an object that are none of some.
func only(object map[string]json.RawMessage, fields ...string) error {
	var errs []problem
	for _, name := range slices.Sorted(maps.Keys(object)) {
		if !slices.Contains(fields, name) {
			errs = append(errs, problem{"extra_forbidden", []string{name}, "Extra inputs are not permitted"})
		}
	}
	if len(errs) > 0 {
		return &invalidError{errs}
	}
	return nil
}

// Kinds of actions.
const (
	say       = ""
	callTool  = "call_tool"
	listTools = "list_tools"
	finish    = "finish"
)

// action is what a client does in a step.
type action struct {
	kind    string
	message env.Message
}

// readAction reads one of
//
//	{"message": "…", "tool_calls": [{"id": "…", "name": "…", "arguments": {…}}]}    what the policy said; either may be missing
//	{"type": "call_tool", "tool_name": "…", "arguments": {…}}                       one call
//	{"type": "list_tools"}
//	{"type": "finish"}                                                              ends the episode as it stands
//
// each with metadata, as in the original, which is ignored. Its errors are the client's.
func readAction(data json.RawMessage) (action, error) {
	var a struct {
		Type      string          `json:"type"`
		Message   *string         `json:"message"`
		ToolCalls []toolCall      `json:"tool_calls"`
		ToolName  *string         `json:"tool_name"`
		Arguments json.RawMessage `json:"arguments"`
	}
	var object map[string]json.RawMessage
	if err := decode(data, &object); err != nil {
		return action{}, err
	}
	if object == nil {
		return action{}, invalid("missing", "data", "Field required")
	}
	if err := decode(data, &a); err != nil {
		return action{}, err
	}
	switch a.Type {
	case say:
		if a.Message == nil && len(a.ToolCalls) == 0 {
			return action{}, invalid("missing", "message", "Field required")
		}
		said := env.Message{Role: env.RoleAssistant}
		if a.Message != nil {
			said.Content = *a.Message
		}
		for i, c := range a.ToolCalls {
			if c.ID == "" {
				c.ID = fmt.Sprintf("call_%d", i)
			}
			said.ToolCalls = append(said.ToolCalls, env.ToolCall{ID: c.ID, Name: c.Name, Arguments: c.arguments()})
		}
		return action{say, said}, only(object, "message", "tool_calls", "type", "metadata")
	case callTool:
		if a.ToolName == nil {
			return action{}, invalid("missing", "tool_name", "Field required")
		}
		return call(*a.ToolName, a.Arguments), only(object, "type", "tool_name", "arguments", "metadata")
	case listTools, finish:
		return action{kind: a.Type}, only(object, "type", "metadata")
	}
	return action{}, invalid("literal_error", "type", "Input should be 'call_tool', 'list_tools' or 'finish', or there is none beside 'message'")
}

// call is the action of one call.
func call(tool string, arguments json.RawMessage) action {
	c := toolCall{ID: "call_0", Name: tool, Arguments: arguments}
	said := env.Message{Role: env.RoleAssistant, ToolCalls: []env.ToolCall{{ID: c.ID, Name: c.Name, Arguments: c.arguments()}}}
	return action{callTool, said}
}

type toolCall struct {
	ID        string          `json:"id"`
	Name      string          `json:"name"`
	Arguments json.RawMessage `json:"arguments"`
}

// arguments are the JSON of an object, or a text of it as models write them; nothing is an empty object.
func (c toolCall) arguments() string {
	var text string
	switch given := bytes.TrimSpace(c.Arguments); {
	case len(given) == 0, string(given) == "null":
		return "{}"
	case json.Unmarshal(given, &text) == nil:
		return text
	default:
		return string(given)
	}
}
