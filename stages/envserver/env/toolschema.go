package env

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strconv"
	"strings"
)

// maxApplied is how many schemas a tool's may apply to one value, each as often as it is referred to.
const maxApplied = 1000

// checkSchema refuses a tool's schema with which the check of a value would not end, or not soon: one that applies to a value by
// way of itself, or whose references multiply. A schema that describes a tree refers to itself for the parts of a value only,
// and passes. A validator follows such references until the process dies.
func checkSchema(text json.RawMessage) error {
	var root any
	if err := json.Unmarshal(text, &root); err != nil {
		return err
	}
	s := &schemaSize{root: root, applied: map[string]int{}}
	return s.every("", root)
}

// schemaSize counts, by the path of a schema within the root, the schemas that it applies to the same value; 0 is being counted.
type schemaSize struct {
	root    any
	applied map[string]int
}

// every counts for all schemas within one.
func (s *schemaSize) every(path string, node any) error {
	switch node := node.(type) {
	case map[string]any:
		if _, err := s.count(path, node); err != nil {
			return err
		}
		for key, child := range node {
			if err := s.every(path+"/"+escape(key), child); err != nil {
				return err
			}
		}
	case []any:
		for i, child := range node {
			if err := s.every(path+"/"+strconv.Itoa(i), child); err != nil {
				return err
			}
		}
	}
	return nil
}

// count is how many schemas one applies to a value, itself included.
func (s *schemaSize) count(path string, node any) (int, error) {
	schema, ok := node.(map[string]any)
	if !ok {
		return 1, nil
	}
	n, known := s.applied[path]
	switch {
	case known && n == 0:
		return 0, fmt.Errorf("the schema at #%s applies to a value by way of itself, without end", path)
	case known:
		return n, nil
	}
	s.applied[path] = 0
	n = 1
	add := func(path string, child any) error {
		more, err := s.count(path, child)
		if n += more; err == nil && n > maxApplied {
			err = fmt.Errorf("the schema at #%s applies more than %d schemas to one value", path, maxApplied)
		}
		return err
	}
	for _, key := range []string{"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas"} {
		switch children := schema[key].(type) {
		case []any:
			for i, child := range children {
				if err := add(path+"/"+key+"/"+strconv.Itoa(i), child); err != nil {
					return 0, err
				}
			}
		case map[string]any:
			if key != "dependentSchemas" {
				children = map[string]any{"": children}
			}
			for name, child := range children {
				at := path + "/" + key
				if key == "dependentSchemas" {
					at += "/" + escape(name)
				}
				if err := add(at, child); err != nil {
					return 0, err
				}
			}
		}
	}
	for _, key := range []string{"$ref", "$dynamicRef"} {
		ref, ok := schema[key].(string)
		if !ok {
			continue
		}
		at, child, err := s.find(ref)
		if err == nil {
			err = add(at, child)
		}
		if err != nil {
			return 0, err
		}
	}
	s.applied[path] = n
	return n, nil
}

// find follows a reference within the root: "#", or a JSON pointer (RFC 6901) behind it.
func (s *schemaSize) find(ref string) (path string, node any, err error) {
	refused := fmt.Errorf("a reference to %q: want one to a part of the same schema, such as #/$defs/name", ref)
	pointer, ok := strings.CutPrefix(ref, "#")
	if !ok || pointer != "" && !strings.HasPrefix(pointer, "/") {
		return "", nil, refused
	}
	if pointer, err = url.PathUnescape(pointer); err != nil {
		return "", nil, errors.Join(refused, err)
	}
	node = s.root
	for step := range strings.SplitSeq(strings.TrimPrefix(pointer, "/"), "/") {
		if pointer == "" {
			break
		}
		key := strings.NewReplacer("~1", "/", "~0", "~").Replace(step)
		switch parent := node.(type) {
		case map[string]any:
			node, ok = parent[key]
			path += "/" + escape(key)
		case []any:
			i, err := strconv.Atoi(key)
			if ok = err == nil && i >= 0 && i < len(parent); ok {
				node, path = parent[i], path+"/"+strconv.Itoa(i)
			}
		default:
			ok = false
		}
		if !ok {
			return "", nil, refused
		}
	}
	return path, node, nil
}

// escape is a key as a step of a JSON pointer.
func escape(key string) string { return strings.NewReplacer("~", "~0", "/", "~1").Replace(key) }
