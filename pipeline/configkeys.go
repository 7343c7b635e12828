package pipeline

import (
	"encoding"
	"reflect"
	"slices"
	"strings"
)

// A Key is one key of a configuration, and what it is set to.
type Key struct {
	// Name is the dotted name, run.max_steps.
	Name string
	// Value is what it is set to. The value of a pointer that is nil is the pointer.
	Value reflect.Value
	// Field is the field that holds it, and In the struct whose field that is; zero for a key of a table without a struct.
	Field reflect.StructField
	In    reflect.Type
}

// Keys are all keys of a configuration, a pointer to a struct with toml tags, in the order of its fields. Tables of the user's
// names are in the order of the names; those without a struct have the keys they hold.
func Keys(config any) []Key {
	return appendKeys(nil, Key{Value: reflect.ValueOf(config)})
}

var asText = reflect.TypeFor[encoding.TextUnmarshaler]()

func appendKeys(keys []Key, k Key) []Key {
	v := k.Value
	for v.Kind() == reflect.Pointer && !v.IsNil() {
		v = v.Elem()
	}
	k.Value = v
	switch {
	case v.Type() == reflect.TypeFor[misplaced](): // no key of anybody
		return keys
	case v.Kind() == reflect.Struct && !reflect.PointerTo(v.Type()).Implements(asText):
		return appendFields(keys, k.Name, v)
	case v.Kind() == reflect.Interface && !v.IsNil():
		k.Value = v.Elem()
		return appendKeys(keys, k)
	case v.Kind() == reflect.Map && v.Len() > 0:
		names := v.MapKeys()
		slices.SortFunc(names, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
		for _, name := range names {
			keys = appendKeys(keys, Key{Name: join(k.Name, name.String()), Value: v.MapIndex(name), Field: k.Field, In: k.In})
		}
		return keys
	}
	return append(keys, k)
}

func appendFields(keys []Key, prefix string, v reflect.Value) []Key {
	for i := range v.NumField() {
		f := v.Type().Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("toml"), ",")
		switch {
		case !f.IsExported() || name == "-":
		case name == "" && f.Anonymous:
			keys = appendFields(keys, prefix, v.Field(i))
		case name != "":
			keys = appendKeys(keys, Key{Name: join(prefix, name), Value: v.Field(i), Field: f, In: v.Type()})
		}
	}
	return keys
}

func join(prefix, name string) string {
	if prefix == "" {
		return name
	}
	return prefix + "." + name
}

// Nearest are the names that are most like one that is none of them, at most three, the likest first: its spelling is off by
// little, or it is in another section.
func Nearest(name string, names []string) []string {
	type candidate struct {
		name string
		off  int
	}
	var near []candidate
	last := name[strings.LastIndex(name, ".")+1:]
	for _, n := range names {
		off := distance(name, n)
		if n[strings.LastIndex(n, ".")+1:] == last {
			off = min(off, 1) // the right key in the wrong section
		}
		if off <= max(1, min(3, len(name)/4)) && !slices.Contains(near, candidate{n, off}) {
			near = append(near, candidate{n, off})
		}
	}
	slices.SortStableFunc(near, func(a, b candidate) int { return a.off - b.off })
	var list []string
	for _, c := range near[:min(3, len(near))] {
		list = append(list, c.name)
	}
	return list
}

// distance is the number of characters to insert, remove, replace or swap with the next that make one name of the other.
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range b {
		rows[0][j+1] = j + 1
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
