package render

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Templates write JSON by the filter tojson, which is Python's json.dumps(value, ensure_ascii=False): a space behind
// commas and colons, keys in their order, numbers as Python has them.

// toJSON writes a JSON value as that does; with indent > 0 a line for each item, as long as it is not over maxToolText.
func toJSON(data []byte, indent int) (string, error) {
	var whole json.RawMessage // bounds the depth, which tokens do not
	if err := json.Unmarshal(data, &whole); err != nil {
		return "", err
	}
	d := json.NewDecoder(bytes.NewReader(whole))
	d.UseNumber()
	v, err := readValue(d)
	if err != nil {
		return "", err
	}
	w := jsonWriter{indent: indent}
	w.value(v, 0)
	return w.String(), nil
}

// object keeps the order of its keys. Of equal keys the last value counts, at the place of the first, as in Python.
type object struct {
	keys   []string
	values map[string]any
}

func (o *object) set(key string, value any) {
	if _, ok := o.values[key]; !ok {
		o.keys = append(o.keys, key)
	}
	o.values[key] = value
}

func readValue(d *json.Decoder) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	delim, ok := t.(json.Delim)
	if !ok {
		return t, nil
	}
	list, o := []any{}, &object{values: map[string]any{}}
	for d.More() {
		if delim == '[' {
			v, err := readValue(d)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
			continue
		}
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := readValue(d)
		if err != nil {
			return nil, err
		}
		o.set(key.(string), v)
	}
	if _, err := d.Token(); err != nil {
		return nil, err
	}
	if delim == '[' {
		return list, nil
	}
	return o, nil
}

type jsonWriter struct {
	strings.Builder
	indent int
}

func (w *jsonWriter) value(v any, depth int) {
	switch v := v.(type) {
	case nil:
		w.WriteString("null")
	case bool:
		w.WriteString(strconv.FormatBool(v))
	case string:
		w.text(v)
	case json.Number:
		w.WriteString(number(string(v)))
	case []any:
		w.items('[', ']', len(v), depth, func(i int) { w.value(v[i], depth+1) })
	case *object:
		w.items('{', '}', len(v.keys), depth, func(i int) {
			w.text(v.keys[i])
			w.WriteString(": ")
			w.value(v.values[v.keys[i]], depth+1)
		})
	}
}

func (w *jsonWriter) items(open, shut byte, n, depth int, item func(int)) {
	w.WriteByte(open)
	for i := range n {
		switch {
		case i > 0 && w.indent == 0:
			w.WriteString(", ")
		case i > 0:
			w.WriteByte(',')
		}
		w.line(depth + 1)
		item(i)
	}
	if n > 0 {
		w.line(depth)
	}
	w.WriteByte(shut)
}

func (w *jsonWriter) line(depth int) {
	if w.indent > 0 && w.Len() <= maxToolText {
		w.WriteString("\n" + strings.Repeat(" ", w.indent*depth))
	}
}

// quote is a text as JSON.
func quote(text string) string {
	var w jsonWriter
	w.text(text)
	return w.String()
}

func (w *jsonWriter) text(s string) {
	w.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			w.WriteByte('\\')
			w.WriteRune(r)
		case r == '\n':
			w.WriteString(`\n`)
		case r == '\r':
			w.WriteString(`\r`)
		case r == '\t':
			w.WriteString(`\t`)
		case r == '\b':
			w.WriteString(`\b`)
		case r == '\f':
			w.WriteString(`\f`)
		case r < ' ':
			fmt.Fprintf(w, `\u%04x`, r)
		default:
			w.WriteRune(r)
		}
	}
	w.WriteByte('"')
}

// number is a JSON number as Python writes it: integers as they are, others as the shortest decimal that is the same
// float64, with a point or an exponent.
func number(s string) string {
	if !strings.ContainsAny(s, ".eE") {
		if s == "-0" {
			return "0"
		}
		return s
	}
	f, _ := strconv.ParseFloat(s, 64) // out of range is infinite
	switch {
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	if a := math.Abs(f); a != 0 && (a < 1e-4 || a >= 1e16) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	out := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(out, ".") {
		out += ".0"
	}
	return out
}
