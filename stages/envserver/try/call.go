package try

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// schema is what a typed call needs to know of a tool's JSON Schema.
type schema struct {
	Properties map[string]property `json:"properties"`
	Required   []string            `json:"required"`
	order      []string            // of the properties
}

type property struct {
	Type        any    `json:"type"` // a name, or several
	Description string `json:"description"`
	Enum        []any  `json:"enum"`
}

// readSchema reads as much of a schema as there is; of one that is odd, nothing.
func readSchema(t env.Tool) schema {
	var s schema
	if json.Unmarshal(t.Schema, &s) != nil {
		return schema{}
	}
	for name := range s.Properties {
		s.order = append(s.order, name)
	}
	rank := func(name string) int { // the required ones first, as the author has them
		if i := slices.Index(s.Required, name); i >= 0 {
			return i
		}
		return len(s.Required)
	}
	slices.SortFunc(s.order, func(a, b string) int {
		if d := rank(a) - rank(b); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	return s
}

// kinds names the types that a property may have.
func (p property) kinds() []string {
	switch t := p.Type.(type) {
	case string:
		return []string{t}
	case []any:
		var all []string
		for _, v := range t {
			if name, ok := v.(string); ok && name != "null" {
				all = append(all, name)
			}
		}
		return all
	}
	return nil
}

// text reports whether a value of the property is a text, so that it can be typed as it is.
func (p property) text() bool { return slices.Contains(p.kinds(), "string") }

// arguments makes the JSON of what was typed behind a tool's name: an object, name=value …, or for a tool with one argument
// its value alone. Values of text properties are taken as they are, others are JSON; either may stand in quotes.
func (s schema) arguments(typed string) (string, error) {
	typed = strings.TrimSpace(typed)
	switch {
	case typed == "":
		return "{}", nil
	case strings.HasPrefix(typed, "{"):
		return typed, nil // the environment says what is wrong with it, as to a model
	}
	if name, _, ok := cutName(typed); len(s.order) == 1 && !(ok && name == s.order[0]) {
		value, err := s.Properties[s.order[0]].value(typed)
		return object([]string{s.order[0]}, []json.RawMessage{value}), err
	}
	var names []string
	var values []json.RawMessage
	for rest := typed; rest != ""; rest = strings.TrimSpace(rest) {
		name, behind, ok := cutName(rest)
		if !ok {
			return "", fmt.Errorf("%q is no argument: write name=value, or a JSON object", firstWord(rest))
		}
		word, left, err := cutValue(behind)
		if err != nil {
			return "", fmt.Errorf("argument %s: %w", name, err)
		}
		value, err := s.Properties[name].value(word)
		if err != nil {
			return "", fmt.Errorf("argument %s: %w", name, err)
		}
		names, values, rest = append(names, name), append(values, value), left
	}
	return object(names, values), nil
}

// object is written by hand, since what was typed twice is to reach the environment twice.
func object(names []string, values []json.RawMessage) string {
	members := make([]string, len(names))
	for i, name := range names {
		members[i] = string(quoted(name)) + ": " + string(values[i])
	}
	return "{" + strings.Join(members, ", ") + "}"
}

func quoted(text string) json.RawMessage {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // of a string it cannot fail
	return bytes.TrimSpace(b.Bytes())
}

// value is what was typed as JSON. What is no JSON where it should be goes as text: the environment refuses it in its words.
func (p property) value(typed string) (json.RawMessage, error) {
	if n := len(typed); n > 1 && typed[0] == '\'' && typed[n-1] == '\'' {
		return quoted(typed[1 : n-1]), nil
	}
	if strings.HasPrefix(typed, `"`) {
		var text string
		if err := json.Unmarshal([]byte(typed), &text); err != nil {
			return nil, fmt.Errorf("%s: no text in quotes: %w", typed, err)
		}
		return quoted(text), nil
	}
	if !p.text() && json.Valid([]byte(typed)) {
		return json.RawMessage(typed), nil
	}
	return quoted(typed), nil
}

// cutName splits name=rest.
func cutName(text string) (name, rest string, ok bool) {
	name, rest, ok = strings.Cut(text, "=")
	return name, rest, ok && name != "" && !strings.ContainsAny(name, " \t\"'{}[]")
}

// cutValue splits the first value off: to the end of the quotes or of the JSON it begins with, else to the next space.
func cutValue(text string) (value, rest string, err error) {
	switch {
	case strings.HasPrefix(text, "'"):
		end := strings.IndexByte(text[1:], '\'')
		if end < 0 {
			return "", "", errors.New("the quotes are not closed")
		}
		return text[:end+2], text[end+2:], nil
	case strings.HasPrefix(text, `"`), strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		d := json.NewDecoder(strings.NewReader(text))
		var v json.RawMessage
		if err := d.Decode(&v); err != nil {
			return "", "", fmt.Errorf("%s: not closed, or no JSON: %w", text, err)
		}
		return text[:d.InputOffset()], text[d.InputOffset():], nil
	}
	i := strings.IndexAny(text, " \t")
	if i < 0 {
		return text, "", nil
	}
	return text[:i], text[i:], nil
}

func firstWord(text string) string {
	word, _, _ := strings.Cut(text, " ")
	return word
}

// findTool finds a tool by its name, in whatever case if only one fits.
func findTool(tools []env.Tool, name string) (env.Tool, bool) {
	var fits []env.Tool
	for _, t := range tools {
		if t.Name == name {
			return t, true
		}
		if strings.EqualFold(t.Name, name) {
			fits = append(fits, t)
		}
	}
	if len(fits) != 1 {
		return env.Tool{}, false
	}
	return fits[0], true
}
