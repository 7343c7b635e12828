package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sync"

	"github.com/google/jsonschema-go/jsonschema"
)

// Tool is what a model is told of a tool.
type Tool struct {
	Name        string          `json:"name"`
	Description string          `json:"description"`
	Schema      json.RawMessage `json:"schema"` // JSON Schema of the arguments object
}

// Refusal is an error that a tool returns to tell the model what it did wrong. Any other error of a tool is one of the
// infrastructure.
type Refusal struct{ Message string }

func (r *Refusal) Error() string { return r.Message }

// Refuse is a [Refusal] with a formatted message.
func Refuse(format string, args ...any) error { return &Refusal{Message: fmt.Sprintf(format, args...)} }

// Tools lists the tools of an episode, in order of name: its exported methods of the form
//
//	func (g *Game) Guess(ctx context.Context, args GuessArgs) (string, error)
//
// where the arguments are a struct; the string is the tool's answer, or a [ToolResult] in its place where the answer has images.
// The tool has the method's name. The struct becomes a JSON
// Schema that allows no other property: names from the json tags, required unless "omitempty" or "omitzero", descriptions from
// jsonschema tags, allowed values from enum tags, the tool's own description from a blank field:
//
//	type GuessArgs struct {
//		_    struct{} `tool:"Guess a word."`
//		Word string   `json:"word" jsonschema:"five lower-case letters"`
//		Mode string   `json:"mode,omitempty" enum:"easy,hard"`
//	}
//
// Methods of any other form are no tools. An error if a struct has a type that JSON Schema does not know.
func Tools(episode Episode) ([]Tool, error) {
	ts, err := toolsOf(episode)
	if err != nil {
		return nil, err
	}
	return ts.list(), nil
}

// ToolSource is an episode whose tools are not methods in Go; it has no others. They are called as those are: only with
// arguments that fit their schema, and a [Refusal] is told to the model.
type ToolSource interface {
	// Tools lists them; their names differ, and their schemas are of objects. They stay the same while the episode lasts.
	Tools() []Tool
	// CallTool runs the tool of a name and returns its answer.
	CallTool(ctx context.Context, name string, args json.RawMessage) (ToolResult, error)
}

// ToolResult is a tool's answer: the content of the message that the model sees, and its images.
type ToolResult struct {
	Text   string
	Images []Image
}

// toolset holds the tools of one episode type, or of one [ToolSource].
type toolset struct {
	tools  []Tool
	byName map[string]*method
}

// method is a tool that can be called.
type method struct {
	source bool // it is a ToolSource's, and no method in Go
	index  int  // of the method in its type
	args   reflect.Type
	schema *argsSchema
}

func (t *toolset) list() []Tool {
	return append([]Tool(nil), t.tools...)
}

var toolsets sync.Map // reflect.Type → *toolset

var (
	contextType = reflect.TypeFor[context.Context]()
	stringType  = reflect.TypeFor[string]()
	resultType  = reflect.TypeFor[ToolResult]()
	errorType   = reflect.TypeFor[error]()
)

func toolsOf(episode Episode) (*toolset, error) {
	if s, ok := episode.(ToolSource); ok {
		return sourceTools(s)
	}
	t := reflect.TypeOf(episode)
	if ts, ok := toolsets.Load(t); ok {
		return ts.(*toolset), nil
	}
	if t == nil {
		return nil, errors.New("tools of no episode")
	}
	ts := &toolset{byName: map[string]*method{}}
	for i := range t.NumMethod() {
		m := t.Method(i)
		if !isTool(m.Type) {
			continue
		}
		args := m.Type.In(2)
		schema, err := schemaOf(args)
		if err != nil {
			return nil, fmt.Errorf("tool %s of %s: %w", m.Name, t, err)
		}
		text, err := json.Marshal(schema)
		if err != nil {
			return nil, fmt.Errorf("tool %s of %s: encode schema: %w", m.Name, t, err)
		}
		resolved, err := newArgsSchema(schema)
		if err != nil {
			return nil, fmt.Errorf("tool %s of %s: resolve schema: %w", m.Name, t, err)
		}
		ts.tools = append(ts.tools, Tool{Name: m.Name, Description: description(args), Schema: text})
		ts.byName[m.Name] = &method{index: i, args: args, schema: resolved}
	}
	toolsets.Store(t, ts)
	return ts, nil
}

func sourceTools(s ToolSource) (*toolset, error) {
	ts := &toolset{tools: s.Tools(), byName: map[string]*method{}}
	for _, tool := range ts.tools {
		if ts.byName[tool.Name] != nil {
			return nil, fmt.Errorf("two tools are called %q", tool.Name)
		}
		var schema jsonschema.Schema
		if err := json.Unmarshal(tool.Schema, &schema); err != nil {
			return nil, fmt.Errorf("tool %s: decode schema: %w", tool.Name, err)
		}
		resolved, err := newArgsSchema(&schema)
		if err != nil {
			return nil, fmt.Errorf("tool %s: resolve schema: %w", tool.Name, err)
		}
		if err := checkSchema(tool.Schema); err != nil {
			return nil, fmt.Errorf("tool %s: %w", tool.Name, err)
		}
		ts.byName[tool.Name] = &method{source: true, schema: resolved}
	}
	return ts, nil
}

// isTool reports whether a method (its receiver counts as the first input) has the form of a tool.
func isTool(m reflect.Type) bool {
	return m.NumIn() == 3 && !m.IsVariadic() && m.In(1) == contextType && m.In(2).Kind() == reflect.Struct &&
		m.NumOut() == 2 && (m.Out(0) == stringType || m.Out(0) == resultType) && m.Out(1) == errorType
}
