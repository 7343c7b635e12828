package schemas

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
)

// A shape says what one version of a schema writes: for each record which of its fields, in their order. A field counts by
// its place in the newest version, whose generated code reads them all; one that is not there stays zero.
type shape [len(recordNames)][]uint8

// A column is a field of a record, with its type in the form in which types are compared.
type column struct{ name, kind string }

// newestColumns are the columns of every record in the newest schemas. A record has one definition in all of them (gen).
var newestColumns = sync.OnceValue(func() map[string][]column {
	all := map[string][]column{}
	names, err := fs.Glob(files, "*.avsc")
	if err != nil {
		panic(err)
	}
	for _, name := range names {
		raw, err := files.ReadFile(name)
		if err == nil {
			err = columns(raw, all)
		}
		if err != nil {
			panic(fmt.Sprintf("embedded schema %s: %v", name, err))
		}
	}
	return all
})

// shapeOf finds the shape of a schema. A field that the newest version lacks, or has with another type, is an error.
func shapeOf(schema []byte) (s shape, err error) {
	had := map[string][]column{}
	if err := columns(schema, had); err != nil {
		return s, err
	}
	newest := newestColumns()
	for number, record := range recordNames {
		for _, c := range had[record] {
			i := slices.Index(newest[record], c)
			if i < 0 {
				return s, fmt.Errorf("%s.%s: the newest version has no such field of type %s", record, c.name, c.kind)
			}
			s[number] = append(s[number], uint8(i))
		}
		delete(had, record)
	}
	for record := range had {
		return s, fmt.Errorf("no record is named %q", record)
	}
	return s, nil
}

// columns adds those of every record that a schema defines to all.
func columns(schema []byte, all map[string][]column) error {
	var tree map[string]any
	if err := json.Unmarshal(schema, &tree); err != nil {
		return err
	}
	kindOf(tree, all)
	return nil
}

// kindOf is a type in words, and collects the columns of the records in it.
func kindOf(t any, all map[string][]column) string {
	switch t := t.(type) {
	case string:
		return t
	case []any:
		kinds := make([]string, len(t))
		for i, branch := range t {
			kinds[i] = kindOf(branch, all)
		}
		return strings.Join(kinds, " or ")
	case map[string]any:
		switch t["type"] {
		case "record":
			name := t["name"].(string)
			fields := t["fields"].([]any)
			own := make([]column, len(fields))
			for i, f := range fields {
				f := f.(map[string]any)
				own[i] = column{f["name"].(string), kindOf(f["type"], all)}
			}
			all[name] = own
			return name
		case "array":
			return "array of " + kindOf(t["items"], all)
		case "map":
			return "map of " + kindOf(t["values"], all)
		}
		return kindOf(t["type"], all)
	}
	panic(fmt.Sprintf("a type is %v", t))
}
