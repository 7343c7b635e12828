package settings

import (
	"bytes"
	"fmt"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
)

var bare = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

// Resolved is a configuration as TOML that can be given to --config, secrets left out. Behind a value that is none of the
// defaults stands where it comes from, by its key: from has that.
func Resolved(config, defaults any, from map[string]string) (string, error) {
	usual := map[string]string{}
	for _, k := range pipeline.Keys(defaults) {
		if text, err := asTOML(k); err == nil {
			usual[k.Name] = text
		}
	}
	tables := map[string]*bytes.Buffer{"": {}}
	order := []string{""}
	for _, k := range pipeline.Keys(config) {
		text, err := asTOML(k)
		if err != nil {
			return "", fmt.Errorf("%s: %w", k.Name, err)
		}
		if text == "" {
			continue // not set, and there is no value that says so
		}
		table, key := split(k)
		b, ok := tables[table]
		if !ok {
			b = &bytes.Buffer{}
			tables[table], order = b, append(order, table)
		}
		fmt.Fprintf(b, "%s = %s", key, text)
		if where := whence(k.Name, from); where != "" && usual[k.Name] != text {
			fmt.Fprintf(b, "  # %s", strings.ReplaceAll(where, "\n", " "))
		}
		b.WriteByte('\n')
	}
	var all strings.Builder
	for _, table := range order {
		if table != "" {
			fmt.Fprintf(&all, "\n[%s]\n", table)
		}
		all.Write(tables[table].Bytes())
	}
	return all.String(), nil
}

// whence is where a key comes from, or the table that it was given in.
func whence(key string, from map[string]string) string {
	for {
		if where, ok := from[key]; ok {
			return where
		}
		dot := strings.LastIndex(key, ".")
		if dot < 0 {
			return ""
		}
		key = key[:dot]
	}
}

// split is the table of a key, and the key in it. Keys below a table of the user's stay dotted.
func split(k pipeline.Key) (table, key string) {
	parts := strings.Split(k.Name, ".")
	name, _, _ := strings.Cut(k.Field.Tag.Get("toml"), ",")
	at := len(parts) - 1
	if k.Field.Type.Kind() == reflect.Map { // keys below it are nobody's fields
		for at > 0 && parts[at] != name {
			at--
		}
	}
	for i, p := range parts {
		if !bare.MatchString(p) {
			parts[i] = fmt.Sprintf("%q", p)
		}
	}
	return strings.Join(parts[:at], "."), strings.Join(parts[at:], ".")
}

// asTOML is a value on one line; empty for one that is not set.
func asTOML(k pipeline.Key) (string, error) {
	v := k.Value
	if !v.IsValid() || v.Kind() == reflect.Pointer && v.IsNil() || v.Kind() == reflect.Map && v.Len() == 0 {
		return "", nil
	}
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return "[]", nil
	}
	if s, ok := v.Interface().(pipeline.Secret); ok {
		if s.String() == "" {
			return "", nil
		}
	}
	if d, ok := v.Interface().(pipeline.Duration); ok {
		return fmt.Sprintf("%q", Short(d)), nil
	}
	if v.Kind() == reflect.Float64 {
		return number(v.Float()), nil
	}
	var b bytes.Buffer
	err := toml.NewEncoder(&b).SetTablesInline(true).Encode(map[string]any{"v": v.Interface()})
	line := strings.TrimSpace(strings.TrimPrefix(b.String(), "v = "))
	if strings.Contains(line, "\n") && v.Kind() == reflect.String {
		line = fmt.Sprintf("%q", v.String())
	}
	if !strings.ContainsAny(line, `"\`) {
		line = strings.ReplaceAll(line, "'", `"`)
	}
	return line, err
}

// number is a number as TOML has those with a fraction.
func number(f float64) string {
	text := strings.ToLower(strings.TrimPrefix(strconv.FormatFloat(f, 'g', -1, 64), "+")) // inf and nan have small letters
	if !strings.ContainsAny(text, ".en") {
		text += ".0"
	}
	return text
}
