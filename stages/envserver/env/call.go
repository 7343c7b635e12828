package env

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"runtime/debug"
	"strings"
	"unicode/utf8"
)

// Call runs a tool of an episode and returns the tool message that answers the call. A name that does not exist, arguments
// that are no JSON object, lack a property, have one too many or twice, or one of the wrong type, and a [Refusal] by the tool
// are answered by a message that begins with "error: " and says what was wrong; the tool is not run on a guess. Any other error
// of the tool, and a panic ([PanicError]), is an error of the infrastructure.
func Call(ctx context.Context, episode Episode, call ToolCall) (Message, error) {
	ts, err := toolsOf(episode)
	if err != nil {
		return Message{}, err
	}
	return ts.call(ctx, episode, call)
}

func (t *toolset) call(ctx context.Context, episode Episode, call ToolCall) (Message, error) {
	answer := Message{Role: RoleTool, ToolCallID: call.ID}
	m, ok := t.byName[call.Name]
	if !ok {
		answer.Content = fmt.Sprintf("error: there is no tool %q; %s", call.Name, t.names())
		return answer, nil
	}
	if err := m.check(call.Arguments); err != nil {
		answer.Content = fmt.Sprintf("error: arguments of %s: %v", call.Name, err)
		return answer, nil
	}
	result, err := m.run(ctx, episode, call)
	var refusal *Refusal
	switch {
	case errors.As(err, &refusal):
		answer.Content = "error: " + refusal.Message
	case err != nil:
		return Message{}, fmt.Errorf("tool %s: %w", call.Name, err)
	default:
		answer.Content, answer.Images = result.Text, result.Images
	}
	return answer, nil
}

// run runs a tool with arguments that have been checked.
func (m *method) run(ctx context.Context, episode Episode, call ToolCall) (result ToolResult, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: string(debug.Stack())}
		}
	}()
	if m.source {
		return episode.(ToolSource).CallTool(ctx, call.Name, json.RawMessage(call.Arguments))
	}
	args := reflect.New(m.args)
	d := json.NewDecoder(strings.NewReader(call.Arguments))
	d.DisallowUnknownFields()
	if err := d.Decode(args.Interface()); err != nil {
		return result, Refuse("arguments of %s: %v", call.Name, err)
	}
	out := reflect.ValueOf(episode).Method(m.index).Call([]reflect.Value{reflect.ValueOf(ctx), args.Elem()})
	err, _ = out[1].Interface().(error)
	if text := out[0]; text.Kind() == reflect.String {
		return ToolResult{Text: text.String()}, err
	}
	return out[0].Interface().(ToolResult), err
}

// check says in words for the model what is wrong with the arguments of a call.
func (m *method) check(text string) error {
	if !utf8.ValidString(text) {
		return errors.New("not UTF-8")
	}
	if err := uniqueKeys(text); err != nil {
		return err
	}
	var instance any
	if err := json.Unmarshal([]byte(text), &instance); err != nil {
		return fmt.Errorf("not JSON: %w", err)
	}
	object, ok := instance.(map[string]any)
	if !ok {
		return errors.New("not a JSON object")
	}
	return m.schema.check(object)
}

// maxDepth is how deep arguments may be nested; the check against a schema takes longer than in proportion to it.
const maxDepth = 64

// uniqueKeys refuses an object that names a property twice, at any depth: encoding/json would silently take the last one; and
// one that is nested too deep. Text that is no JSON passes; it is refused elsewhere.
func uniqueKeys(text string) error {
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	type level struct {
		keys map[string]bool // nil in an array
		key  bool            // the next token is a key
	}
	var levels []level
	for {
		token, err := d.Token()
		if err == io.EOF || err != nil {
			return nil
		}
		var top *level
		if n := len(levels); n > 0 {
			top = &levels[n-1]
		}
		if name, ok := token.(string); ok && top != nil && top.key {
			if top.keys[name] {
				return fmt.Errorf("property %q is given twice", name)
			}
			top.keys[name], top.key = true, false
			continue
		}
		if top != nil && top.keys != nil {
			top.key = true
		}
		if len(levels) > maxDepth {
			return fmt.Errorf("nested more than %d deep", maxDepth)
		}
		switch token {
		case json.Delim('{'):
			levels = append(levels, level{keys: map[string]bool{}, key: true})
		case json.Delim('['):
			levels = append(levels, level{})
		case json.Delim('}'), json.Delim(']'):
			levels = levels[:len(levels)-1]
		}
	}
}

func (t *toolset) names() string {
	if len(t.tools) == 0 {
		return "there are no tools here"
	}
	names := make([]string, len(t.tools))
	for i, tool := range t.tools {
		names[i] = tool.Name
	}
	return "there are: " + strings.Join(names, ", ")
}
