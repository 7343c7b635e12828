package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"
)

// A call in the format of Hermes and Qwen: <tool_call>{"name": …, "arguments": {…}}</tool_call>.
const (
	callOpen  = "<tool_call>"
	callClose = "</tool_call>"
)

// nativeTools is how a native model is told of tools.
func nativeTools(tools []Tool) (string, error) {
	var b strings.Builder
	b.WriteString("# Tools\n\nYou may call one or more functions. Their signatures, within <tools></tools>:\n<tools>\n")
	for _, t := range tools {
		line, err := json.Marshal(map[string]any{"type": "function", "function": map[string]any{
			"name": t.Name, "description": t.Description, "parameters": t.Parameters}})
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

// A finder gives the place of a marker in a text, from a place on; -1 without one.
type finder func(marker string, from int) int

// inText finds a marker wherever the text spells it.
func inText(text string) finder {
	return func(marker string, from int) int {
		if i := strings.Index(text[from:], marker); i >= 0 {
			return from + i
		}
		return -1
	}
}

// hermesCalls finds the calls in a text, and where the first begins: at its end if there is none.
func hermesCalls(text string, find finder) (calls []Call, begin int) {
	begin = len(text)
	for at := find(callOpen, 0); at >= 0; {
		begin = min(begin, at)
		from := at + len(callOpen)
		to := find(callClose, from)
		if to < 0 {
			call := parseCall(text[from:], "arguments")
			if call.Err == nil {
				call = Call{Arguments: strings.TrimSpace(text[from:]), Err: fmt.Errorf("%s is missing", callClose)}
			}
			return append(calls, call), begin
		}
		calls = append(calls, parseCall(text[from:to], "arguments"))
		at = find(callOpen, to+len(callClose))
	}
	return calls, begin
}

// parseCall reads a JSON object with a name and, under the key arguments or parameters, its arguments.
func parseCall(text, key string) Call {
	var call struct {
		Name       *string         `json:"name"`
		Arguments  json.RawMessage `json:"arguments"`
		Parameters json.RawMessage `json:"parameters"`
	}
	err := json.Unmarshal([]byte(text), &call)
	arguments := call.Arguments
	if key == "parameters" {
		arguments = call.Parameters
	}
	switch {
	case err != nil:
	case call.Name == nil:
		err = errors.New("it has no name")
	case arguments == nil:
		err = fmt.Errorf("it has no %s", key)
	default:
		return Call{Name: *call.Name, Arguments: string(arguments)}
	}
	return Call{Arguments: strings.TrimSpace(text), Err: err}
}
