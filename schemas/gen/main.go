// Command gen writes the Go types of the Avro records beside it and their conversions to and from goavro's native form.
//
// It reads every *.avsc of the working directory and writes records.gen.go. With -freeze it also copies each schema
// whose fingerprint is new to versions/, where it stays embedded for ever, so that old topics can be read.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/format"
	"log"
	"os"
	"path/filepath"
	"reflect"
	"sort"
	"strings"

	"github.com/linkedin/goavro/v2"
)

type schema struct {
	Name   string  `json:"name"`
	Doc    string  `json:"doc"`
	Fields []field `json:"fields"`
}

type field struct {
	Name string `json:"name"`
	Doc  string `json:"doc"`
	Type any    `json:"type"`
}

// UnmarshalJSON reads a field. The attribute tensor, which says what packed bytes hold, is the field's and not the
// type's: goavro would take a type with attributes of its own into the fingerprint, against the specification.
func (f *field) UnmarshalJSON(raw []byte) error {
	type plain field
	attributes := struct {
		*plain
		Tensor string `json:"tensor"`
	}{plain: (*plain)(f)}
	if err := json.Unmarshal(raw, &attributes); err != nil {
		return err
	}
	if attributes.Tensor != "" {
		f.Type = map[string]any{"type": f.Type, "tensor": attributes.Tensor}
	}
	return nil
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("schemas/gen: ")
	freeze := flag.Bool("freeze", false, "keep the schemas as they are now as a version that must stay readable")
	out := flag.String("o", "records.gen.go", "output file")
	flag.Parse()
	if err := run(*out, *freeze); err != nil {
		log.Fatal(err)
	}
}

func run(out string, freeze bool) error {
	files, err := filepath.Glob("*.avsc")
	if err != nil {
		return err
	}
	g := generator{seen: map[string]schema{}}
	for _, name := range files {
		raw, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := g.file(name, raw); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if freeze {
			if err := keep(raw); err != nil {
				return fmt.Errorf("%s: keep this version: %w", name, err)
			}
		}
	}
	src, err := format.Source(g.source())
	if err != nil {
		return fmt.Errorf("format: %w\n%s", err, g.source())
	}
	return os.WriteFile(out, src, 0o644)
}

func keep(raw []byte) error {
	var s schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	codec, err := goavro.NewCodec(string(raw))
	if err != nil {
		return err
	}
	if err := os.MkdirAll("versions", 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join("versions", fmt.Sprintf("%s.%016x.avsc", s.Name, codec.Rabin)), raw, 0o644)
}

type generator struct {
	seen  map[string]schema
	top   []string
	types bytes.Buffer
}

func (g *generator) file(name string, raw []byte) error {
	if _, err := goavro.NewCodec(string(raw)); err != nil {
		return err
	}
	var s schema
	if err := json.Unmarshal(raw, &s); err != nil {
		return err
	}
	g.top = append(g.top, s.Name)
	return g.record(s)
}

// record emits a type once; the same name with another definition is an error.
func (g *generator) record(s schema) error {
	for i := range s.Fields {
		if err := g.nested(s.Fields[i].Type); err != nil {
			return err
		}
	}
	flat := flatten(s)
	if old, ok := g.seen[s.Name]; ok {
		if !reflect.DeepEqual(old, flat) {
			return fmt.Errorf("record %s is defined twice, differently", s.Name)
		}
		return nil
	}
	g.seen[s.Name] = flat
	w := &g.types
	fmt.Fprintf(w, "\n// %s\ntype %s struct {\n", s.Doc, s.Name)
	for _, f := range flat.Fields {
		if f.Doc != "" {
			fmt.Fprintf(w, "// %s: %s\n", goName(f.Name), f.Doc)
		}
		fmt.Fprintf(w, "%s %s `avro:%q`\n", goName(f.Name), goType(f.Type), f.Name)
	}
	fmt.Fprintf(w, "}\n\nfunc (r *%s) native() map[string]any {\nreturn map[string]any{\n", s.Name)
	for _, f := range flat.Fields {
		fmt.Fprintf(w, "%q: %s,\n", f.Name, toNative(f.Type, "r."+goName(f.Name)))
	}
	fmt.Fprintf(w, "}\n}\n\nfunc (r *%s) fromNative(m map[string]any) {\n", s.Name)
	for _, f := range flat.Fields {
		fmt.Fprintf(w, "%s\n", fromNative(f.Type, "r."+goName(f.Name), fmt.Sprintf("m[%q]", f.Name)))
	}
	fmt.Fprintf(w, "}\n")
	if hasTensors(flat, g.seen) {
		g.tensors(flat)
	}
	return nil
}

// tensors emits the walk over a record's tensor fields that the claim check uses.
func (g *generator) tensors(s schema) {
	w := &g.types
	fmt.Fprintf(w, "\nfunc (r *%s) tensors(path string, visit func(path string, data *[]byte)) {\n", s.Name)
	for _, f := range s.Fields {
		switch name, kind := goName(f.Name), kindOf(f.Type); {
		case kind == "tensor":
			fmt.Fprintf(w, "visit(path+%q, (*[]byte)(&r.%s))\n", f.Name, name)
		case kind == "array" && isTensorRecord(items(f.Type), g.seen):
			fmt.Fprintf(w, "for i := range r.%s {\nr.%s[i].tensors(path+%q+strconv.Itoa(i)+\".\", visit)\n}\n", name, name, f.Name+".")
		}
	}
	fmt.Fprintf(w, "}\n")
}

func (g *generator) nested(t any) error {
	switch t := t.(type) {
	case []any:
		for _, u := range t {
			if err := g.nested(u); err != nil {
				return err
			}
		}
	case map[string]any:
		switch t["type"] {
		case "record":
			raw, err := json.Marshal(t)
			if err != nil {
				return err
			}
			var s schema
			if err := json.Unmarshal(raw, &s); err != nil {
				return err
			}
			return g.record(s)
		case "array":
			return g.nested(t["items"])
		case "map":
			return g.nested(t["values"])
		}
	}
	return nil
}

func (g *generator) source() []byte {
	var w bytes.Buffer
	w.WriteString("// Code generated by schemas/gen from *.avsc; DO NOT EDIT.\n\npackage schemas\n\nimport \"strconv\"\n")
	sort.Strings(g.top)
	w.WriteString("\n// newRecord makes an empty record of the name an Avro schema gives it.\nfunc newRecord(name string) Record {\nswitch name {\n")
	for _, n := range g.top {
		fmt.Fprintf(&w, "case %q:\nreturn new(%s)\n", n, n)
	}
	w.WriteString("}\nreturn nil\n}\n")
	for _, n := range g.top {
		fmt.Fprintf(&w, "\n// SchemaName is the record's name in its Avro schema.\nfunc (*%s) SchemaName() string { return %q }\n", n, n)
	}
	w.Write(g.types.Bytes())
	return w.Bytes()
}

// flatten replaces nested definitions by their names.
func flatten(s schema) schema {
	var name func(t any) any
	name = func(t any) any {
		switch t := t.(type) {
		case []any:
			out := make([]any, len(t))
			for i := range t {
				out[i] = name(t[i])
			}
			return out
		case map[string]any:
			if t["type"] == "record" {
				return t["name"]
			}
			out := map[string]any{}
			for k, v := range t {
				out[k] = name(v)
			}
			return out
		}
		return t
	}
	out := schema{Name: s.Name, Doc: s.Doc}
	for _, f := range s.Fields {
		out.Fields = append(out.Fields, field{f.Name, f.Doc, name(f.Type)})
	}
	return out
}

var primitives = map[string]struct{ goType, null string }{
	"boolean": {"bool", "asBool"}, "int": {"int", "asInt"}, "long": {"int64", "asLong"},
	"double": {"float64", "asDouble"}, "string": {"string", "asString"}, "bytes": {"[]byte", "asBytes"},
}

func kindOf(t any) string {
	switch t := t.(type) {
	case string:
		if _, ok := primitives[t]; ok {
			return "primitive"
		}
		return "record"
	case []any:
		return "optional"
	case map[string]any:
		if t["tensor"] != nil {
			return "tensor"
		}
		return t["type"].(string)
	}
	panic(fmt.Sprintf("type %v is not supported", t))
}

func items(t any) any    { return t.(map[string]any)["items"] }
func values(t any) any   { return t.(map[string]any)["values"] }
func optional(t any) any { return t.([]any)[1] }

func isTensorRecord(t any, seen map[string]schema) bool {
	name, ok := t.(string)
	return ok && hasTensors(seen[name], seen)
}

func hasTensors(s schema, seen map[string]schema) bool {
	for _, f := range s.Fields {
		switch kindOf(f.Type) {
		case "tensor":
			return true
		case "array":
			if isTensorRecord(items(f.Type), seen) {
				return true
			}
		}
	}
	return false
}

func goType(t any) string {
	switch kindOf(t) {
	case "primitive":
		return primitives[t.(string)].goType
	case "tensor":
		return map[string]string{"int32": "Int32s", "float32": "Float32s", "uint8": "Uint8s", "blob": "Blob"}[t.(map[string]any)["tensor"].(string)]
	case "array":
		return "[]" + goType(items(t))
	case "map":
		return "map[string]" + goType(values(t))
	case "optional":
		return "*" + goType(optional(t))
	}
	return t.(string)
}

func toNative(t any, v string) string {
	switch kindOf(t) {
	case "primitive":
		if t == "bytes" {
			return "nonNil(" + v + ")"
		}
		return v
	case "tensor":
		return "nonNil(" + v + ")"
	case "array":
		return fmt.Sprintf("listOf(%s, func(v *%s) any { return %s })", v, goType(items(t)), elemNative(items(t)))
	case "map":
		return fmt.Sprintf("mapOf(%s, func(v *%s) any { return %s })", v, goType(values(t)), elemNative(values(t)))
	case "optional":
		name, _ := optional(t).(string)
		if kindOf(optional(t)) == "record" {
			name = "prl." + name
		}
		return fmt.Sprintf("optionOf(%q, %s, func(v *%s) any { return %s })", name, v, goType(optional(t)), elemNative(optional(t)))
	}
	return v + ".native()"
}

func elemNative(t any) string {
	if kindOf(t) == "record" {
		return "v.native()"
	}
	return toNative(t, "*v")
}

func fromNative(t any, dst, src string) string {
	switch kindOf(t) {
	case "primitive":
		return fmt.Sprintf("%s = %s(%s)", dst, primitives[t.(string)].null, src)
	case "tensor":
		return fmt.Sprintf("%s = asBytes(%s)", dst, src)
	case "array":
		return fmt.Sprintf("%s = toList(%s, %s)", dst, src, elemFrom(items(t)))
	case "map":
		return fmt.Sprintf("%s = toMap(%s, %s)", dst, src, elemFrom(values(t)))
	case "optional":
		return fmt.Sprintf("%s = toOption(%s, %s)", dst, src, elemFrom(optional(t)))
	}
	return fmt.Sprintf("%s.fromNative(asRecord(%s))", dst, src)
}

func elemFrom(t any) string {
	return fmt.Sprintf("func(v *%s, n any) { %s }", goType(t), func() string {
		if kindOf(t) == "record" {
			return "v.fromNative(asRecord(n))"
		}
		return fromNative(t, "*v", "n")
	}())
}

// goName turns token_ids into TokenIDs.
func goName(s string) string {
	var b strings.Builder
	for _, part := range strings.Split(s, "_") {
		switch part {
		case "id", "uri", "sha256":
			b.WriteString(strings.ToUpper(part))
		case "ids":
			b.WriteString("IDs")
		default:
			b.WriteString(strings.ToUpper(part[:1]) + part[1:])
		}
	}
	return b.String()
}
