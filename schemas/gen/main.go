// Command gen writes the Go types of the Avro records beside it and how they are written and read.
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
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
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
	fmt.Fprintf(w, "}\n\nfunc (r *%s) write(w *writer) {\n", s.Name)
	for _, f := range flat.Fields {
		fmt.Fprintf(w, "%s\n", write(f.Type, "r."+goName(f.Name), f.Name))
	}
	fmt.Fprintf(w, "}\n\nfunc (r *%s) read(d *reader) {\nfor _, field := range d.shape[record%s] {\nswitch field {\n", s.Name, s.Name)
	tensors := slices.ContainsFunc(flat.Fields, func(f field) bool { return kindOf(f.Type) == "tensor" })
	for i, f := range flat.Fields {
		fmt.Fprintf(w, "case %d:\n%s\n", i, readField(f, tensors))
	}
	fmt.Fprintf(w, "}\n}\n}\n")
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
	all := slices.Sorted(maps.Keys(g.seen))
	w.WriteString("\n// The numbers of all records, those within others too, by which a version's shape lists their fields.\nconst (\n")
	for i, n := range all {
		fmt.Fprintf(&w, "record%s%s\n", n, map[bool]string{true: " = iota"}[i == 0])
	}
	w.WriteString(")\n\nvar recordNames = [...]string{\n")
	for _, n := range all {
		fmt.Fprintf(&w, "record%s: %q,\n", n, n)
	}
	w.WriteString("}\n")
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

// primitives are the Go types of Avro's; reader and writer have a method named as Avro names the type.
var primitives = map[string]string{
	"boolean": "bool", "int": "int", "long": "int64", "double": "float64", "string": "string", "bytes": "[]byte",
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
		return primitives[t.(string)]
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

// write is the statements that write the value v of a field.
func write(t any, v, field string) string {
	switch kindOf(t) {
	case "primitive":
		if t == "int" { // Go's may be too large
			return fmt.Sprintf("w.int(%s, %q)", v, field)
		}
		return fmt.Sprintf("w.%s(%s)", t, v)
	case "tensor":
		return fmt.Sprintf("w.bytes(%s)", v)
	case "array":
		return fmt.Sprintf("for i := range %[1]s {\nw.block(i, len(%[1]s))\n%[2]s\n}\nw.end()", v, write(items(t), v+"[i]", field))
	case "map":
		return fmt.Sprintf("for i, key := range sorted(w, %[1]s) {\nw.block(i, len(%[1]s))\nw.string(key)\nvalue := %[1]s[key]\n%[2]s\n}\nw.end()",
			v, write(values(t), "value", field))
	case "optional":
		value := v
		if kindOf(optional(t)) == "primitive" {
			value = "*" + v
		}
		return fmt.Sprintf("if w.option(%s != nil) {\n%s\n}", v, write(optional(t), value, field))
	}
	return v + ".write(w)"
}

// readField is the statements that read a field; beside says that the record has tensors, whose memory texts may share.
// Most values that can be empty are: that is asked first, for it takes no call.
func readField(f field, beside bool) string {
	dst := "r." + goName(f.Name)
	statements := read(f.Type, dst)
	if f.Type == "string" && beside {
		statements = dst + " = d.text()"
	}
	if kind := kindOf(f.Type); kind == "record" || kind == "primitive" && f.Type != "string" && f.Type != "bytes" {
		return statements
	}
	return fmt.Sprintf("if !d.empty() {\n%s\n}", statements)
}

// read is the statements that read a value into dst.
func read(t any, dst string) string {
	switch kindOf(t) {
	case "primitive":
		return fmt.Sprintf("%s = d.%s()", dst, t)
	case "tensor":
		return fmt.Sprintf("%s = d.bytes()", dst)
	case "array":
		return fmt.Sprintf("%s = readList(d, %s, %s)", dst, least(items(t)), readInto(items(t)))
	case "map":
		return fmt.Sprintf("%s = readMap(d, %s)", dst, readInto(values(t)))
	case "optional":
		return fmt.Sprintf("%s = readOption(d, %s)", dst, readInto(optional(t)))
	}
	return dst + ".read(d)"
}

// readInto is a function that reads an element.
func readInto(t any) string {
	if kindOf(t) == "record" {
		return fmt.Sprintf("(*%s).read", t)
	}
	return fmt.Sprintf("func(v *%s, d *reader) { %s }", goType(t), read(t, "*v"))
}

// least is the least number of bytes that an element takes: no field takes less than one.
func least(t any) string {
	if kindOf(t) == "record" {
		return fmt.Sprintf("len(d.shape[record%s])", t)
	}
	return "1"
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
