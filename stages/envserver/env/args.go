package env

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// argsSchema is the schema of a tool's arguments.
type argsSchema struct {
	root *jsonschema.Schema
	all  *jsonschema.Resolved
	some *jsonschema.Resolved // the same, with nothing required of the object itself
}

func newArgsSchema(root *jsonschema.Schema) (*argsSchema, error) {
	loose := root.CloneSchemas()
	loose.Required = nil
	s := &argsSchema{root: root}
	var err error
	if s.all, err = root.Resolve(nil); err != nil {
		return nil, err
	}
	s.some, err = loose.Resolve(nil)
	return s, err
}

// check says in words for the model what is wrong with arguments, in the same words every time: a validator, which goes through
// properties in any order, names another one of several mistakes each time.
func (s *argsSchema) check(args map[string]any) error {
	if s.all.Validate(args) == nil {
		return nil
	}
	var unknown, missing []string
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if s.closed() && s.root.Properties[name] == nil {
			unknown = append(unknown, name)
		}
	}
	for _, name := range s.root.Required {
		if _, ok := args[name]; !ok {
			missing = append(missing, name)
		}
	}
	switch {
	case len(unknown) > 0:
		return fmt.Errorf("unexpected additional properties %q", unknown)
	case len(missing) > 0:
		return fmt.Errorf("required: missing properties: %q", missing)
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		err := s.some.Validate(map[string]any{name: args[name]})
		if err == nil {
			continue
		}
		if holdsObjects(args[name]) { // in which there may be several mistakes, again
			return within(name, s.root.Properties[name], args[name])
		}
		return errors.New(strings.TrimPrefix(err.Error(), "validating root: "))
	}
	return fmt.Errorf("they do not fit the schema %s", describe(s.root))
}

// within says what is wrong with a property that does not fit its schema.
func within(name string, schema *jsonschema.Schema, value any) error {
	if object, ok := value.(map[string]any); ok && schema != nil {
		if inner, err := newArgsSchema(schema.CloneSchemas()); err == nil { // else it refers to what is not in it
			if err := inner.check(object); err != nil {
				return fmt.Errorf("property %q: %w", name, err)
			}
		}
	}
	return fmt.Errorf("property %q does not fit its schema %s", name, describe(schema))
}

// closed reports whether the object may have no properties but those that are named.
func (s *argsSchema) closed() bool {
	more := s.root.AdditionalProperties
	return more != nil && describe(more) == "false" && len(s.root.PatternProperties) == 0
}

func holdsObjects(v any) bool {
	switch v := v.(type) {
	case map[string]any:
		return true
	case []any:
		return slices.ContainsFunc(v, holdsObjects)
	}
	return false
}

// describe is a schema as JSON.
func describe(s *jsonschema.Schema) string {
	text, err := json.Marshal(s)
	if err != nil {
		return "" // it was read from JSON, or made by a generator
	}
	return string(text)
}
