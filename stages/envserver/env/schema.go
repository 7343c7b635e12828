package env

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// schemaOf is the JSON Schema of an arguments struct, enum tags included.
func schemaOf(t reflect.Type) (*jsonschema.Schema, error) {
	s, err := jsonschema.ForType(t, nil)
	if err != nil {
		return nil, err
	}
	return s, addEnums(t, s)
}

// addEnums puts the values of enum tags into the schema of a type, at any depth. Only strings can have them.
func addEnums(t reflect.Type, s *jsonschema.Schema) error {
	switch t.Kind() {
	case reflect.Pointer:
		return addEnums(t.Elem(), s)
	case reflect.Slice, reflect.Array:
		if s.Items == nil {
			return nil
		}
		return addEnums(t.Elem(), s.Items)
	case reflect.Map:
		if s.AdditionalProperties == nil {
			return nil
		}
		return addEnums(t.Elem(), s.AdditionalProperties)
	case reflect.Struct:
	default:
		return nil
	}
	for _, f := range reflect.VisibleFields(t) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		property := s.Properties[name]
		if property == nil {
			continue
		}
		if err := addEnums(f.Type, property); err != nil {
			return err
		}
		values, ok := f.Tag.Lookup("enum")
		if !ok {
			continue
		}
		if f.Type.Kind() != reflect.String {
			return fmt.Errorf("field %s has an enum tag and is no string", f.Name)
		}
		property.Enum = nil // an embedded struct's fields are visible twice
		for v := range strings.SplitSeq(values, ",") {
			property.Enum = append(property.Enum, strings.TrimSpace(v))
		}
	}
	return nil
}

// description is the tool tag of the struct's blank field; empty without one.
func description(t reflect.Type) string {
	for i := range t.NumField() {
		if f := t.Field(i); f.Name == "_" {
			if d, ok := f.Tag.Lookup("tool"); ok {
				return d
			}
		}
	}
	return ""
}
