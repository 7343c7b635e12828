package openenv

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// How the policy's replies become actions.
const (
	asText  = "text"  // a reply is a field of the action
	asStep  = "step"  // a tool of that name takes the action
	asTools = "tools" // the server's own tools
)

// actions is what an environment's action schema says of them.
type actions struct {
	how   string
	field string   // of the action, as text
	step  env.Tool // as step
	calls bool     // the server's tools are called as actions; else by JSON-RPC
}

// property is as much of a JSON Schema as tells what a field can be.
type property struct {
	Type    string            `json:"type"`
	Const   json.RawMessage   `json:"const"`
	Default json.RawMessage   `json:"default"`
	Enum    []json.RawMessage `json:"enum"`
}

// actions reads the schema of an environment's actions.
func (c Config) actions(schema json.RawMessage) (actions, error) {
	var said struct {
		Type        string                     `json:"type"`
		Description string                     `json:"description"`
		Properties  map[string]json.RawMessage `json:"properties"`
		Required    []string                   `json:"required"`
	}
	if err := json.Unmarshal(schema, &said); err != nil || said.Type != "object" {
		return actions{}, fmt.Errorf("GET /schema: an action is %.200s, want the JSON Schema of an object", schema)
	}
	fields := map[string]property{}
	for name, text := range said.Properties {
		var p property
		if err := json.Unmarshal(text, &p); err != nil {
			return actions{}, fmt.Errorf("GET /schema: field %q of the action: %w", name, err)
		}
		if name != "metadata" { // which every action has
			fields[name] = p
		}
	}
	a := actions{how: c.Actions, calls: len(fields) == 0 || isCall(fields["type"])}
	texts := candidates(fields, said.Required)
	if a.how == "auto" {
		switch {
		case c.Field != "":
			a.how = asText
		case a.calls:
			a.how = asTools
		case len(texts) == 1:
			a.how = asText
		default:
			a.how = asStep
		}
	}
	switch a.how {
	case asText:
		if a.field = c.Field; a.field == "" {
			if len(texts) != 1 {
				return a, fmt.Errorf(`actions = "text": any of the action's fields %s could be the text: name one in field`, names(fields))
			}
			a.field = texts[0]
		} else if _, ok := fields[a.field]; !ok {
			return a, fmt.Errorf("field = %q: the action has %s", a.field, names(fields))
		}
	case asStep:
		var err error
		if a.step, err = stepTool(schema, said.Description); err != nil {
			return a, err
		}
	}
	return a, nil
}

// isCall reports whether a field "type" is that of OpenEnv's actions for tools.
func isCall(p property) bool {
	for _, v := range []json.RawMessage{p.Const, p.Default} {
		if string(v) == `"call_tool"` || string(v) == `"list_tools"` {
			return true
		}
	}
	return false
}

// candidates are the fields that a text could be: the one that is required, or else the ones that there are.
func candidates(fields map[string]property, required []string) []string {
	var texts, needed []string
	for name, p := range fields {
		text := p.Type == "string" && p.Const == nil && len(p.Enum) == 0
		if slices.Contains(required, name) {
			needed = append(needed, name)
			if !text {
				return nil
			}
		}
		if text {
			texts = append(texts, name)
		}
	}
	slices.Sort(texts)
	if len(needed) > 0 {
		return needed
	}
	if len(fields) > len(texts) {
		return nil
	}
	return texts
}

func names(fields map[string]property) string {
	var all []string
	for name := range fields {
		all = append(all, name)
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}

// stepTool takes an action as its arguments.
func stepTool(schema json.RawMessage, description string) (env.Tool, error) {
	var fields, properties map[string]json.RawMessage
	if err := json.Unmarshal(schema, &fields); err != nil {
		return env.Tool{}, err
	}
	if err := json.Unmarshal(fields["properties"], &properties); err != nil {
		return env.Tool{}, errors.New("GET /schema: the action has no fields")
	}
	delete(properties, "metadata")
	delete(fields, "description")
	var err error
	if fields["properties"], err = json.Marshal(properties); err != nil {
		return env.Tool{}, err
	}
	text, err := json.Marshal(fields)
	if description == "" {
		description = "Act."
	}
	return env.Tool{Name: "step", Description: description, Schema: text}, err
}
