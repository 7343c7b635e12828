package settings

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/envserver/bridge"
	"github.com/prl-project/prl/stages/envserver/envs"
)

var update = flag.Bool("update", false, "write settings.json and configs/README.md anew")

// anyName stands for what users name.
const anyName = "<name>"

// TestTable holds settings.json, which the binary carries, and configs/README.md to the code. `make generate` writes them anew.
func TestTable(t *testing.T) {
	var table bytes.Buffer
	enc := json.NewEncoder(&table)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", " ")
	sections := fromCode(t)
	if err := enc.Encode(sections); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{"settings.json": table.String(), "../../configs/README.md": page(sections)} {
		have, err := os.ReadFile(path)
		if string(have) == want {
			continue
		}
		if !*update {
			t.Errorf("%s is behind the code (%v): make generate", path, err)
		} else if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// TestEveryKeyIsExplained wants of each key a meaning that says something, and a unit of a number that has one.
func TestEveryKeyIsExplained(t *testing.T) {
	seen := map[string]bool{}
	for _, section := range fromCode(t) {
		for _, s := range section.Settings {
			if at := s.Key + " " + section.Of; seen[at] {
				t.Errorf("%s is there twice", at)
			} else {
				seen[at] = true
			}
			last := s.Key[strings.LastIndex(s.Key, ".")+1:]
			if words := strings.Fields(strings.ReplaceAll(s.Doc, "`"+last+"`", "")); len(words) < 3 {
				t.Errorf("%s: %q says nothing: write a comment on its field", s.Key, s.Doc)
			}
			if strings.Contains(s.Doc, "\n") || strings.Contains(s.Default, "\n") {
				t.Errorf("%s: more than one line", s.Key)
			}
			for _, part := range []string{"bytes", "mib", "tokens", "_len", "timeout", "seconds", "tflops"} {
				if number := strings.Contains(s.Type, "number"); number && strings.Contains(last, part) && s.Unit == "" {
					t.Errorf("%s: a number of %s without a unit", s.Key, part)
				}
			}
		}
	}
	if len(seen) < 150 {
		t.Errorf("only %d keys", len(seen))
	}
}

// fromCode are the sections as the structs of the configuration and their comments say.
func fromCode(t *testing.T) []Section {
	t.Helper()
	cfg := stages.DefaultConfig()
	one := map[string]any{anyName: map[string]any{}}
	cfg.Prepare(map[string]any{"envs": one, "evals": one, "frozen": one, "fleet": map[string]any{"runs": one}})
	src := &source{t: t, packages: map[string]*parsed{}}
	list := src.sections("", "", reflect.TypeOf(*cfg), pipeline.Keys(cfg))
	list = append(list, options(t, src)...)
	return list
}

// options are the sections of the options that environments and bridges have.
func options(t *testing.T, src *source) (list []Section) {
	t.Helper()
	seen := errors.New("seen")
	add := func(prefix, of string, open func(decode func(any) error) error) {
		err := open(func(config any) error {
			keys := pipeline.Keys(config)
			for i := range keys {
				keys[i].Name = prefix + "." + keys[i].Name
			}
			list = append(list, src.sections(prefix, of, reflect.TypeOf(config).Elem(), keys)...)
			return seen
		})
		if !errors.Is(err, seen) {
			t.Fatalf("%s %s: %v", prefix, of, err)
		}
	}
	for _, name := range envs.Names() {
		add("envs."+name+".options", "the built-in environment "+name, func(decode func(any) error) error {
			_, err := envs.Open(name, decode)
			return err
		})
	}
	for _, like := range []string{"python:module:Class", "verifiers:gsm8k", "openenv:http://host:8000"} {
		kind, _, _ := strings.Cut(like, ":")
		add("envs."+anyName+".options", "source = \""+kind+":…\"", func(decode func(any) error) error {
			_, err := bridge.Open("any", like, t.TempDir(), decode)
			return err
		})
	}
	return list
}

// sections groups keys by the table they are in.
func (src *source) sections(root, of string, in reflect.Type, keys []pipeline.Key) (list []Section) {
	at := map[string]int{}
	for _, k := range keys {
		if k.Value.Kind() == reflect.Map && strings.HasSuffix(k.Name, "<name>.options") {
			continue // they have sections of their own
		}
		dot := max(0, strings.LastIndex(k.Name, "."))
		table := k.Name[:dot]
		if _, ok := at[table]; !ok {
			at[table] = len(list)
			doc := src.typeDoc(k.In)
			if table == root && of == "" {
				doc = ""
			} else if table == root {
				doc = src.typeDoc(in)
			}
			list = append(list, Section{Name: table, Of: of, Doc: doc})
		}
		s := &list[at[table]]
		s.Settings = append(s.Settings, src.setting(k))
	}
	return list
}

func (src *source) setting(k pipeline.Key) Setting {
	s := Setting{Key: k.Name, Doc: src.fieldDoc(k.In, k.Field)}
	typ := k.Field.Type
	for typ.Kind() == reflect.Pointer {
		typ = typ.Elem()
	}
	s.Type, s.Unit = kind(typ), unit(typ, k.Name)
	s.Values = src.values(k.In, typ, k.Field)
	if before, stated, ok := strings.Cut(s.Doc, " Unit: "); ok {
		s.Doc, s.Unit = before, strings.TrimSuffix(stated, ".")
	}
	s.Default = value(src.t, k.Value)
	return s
}

func kind(t reflect.Type) string {
	switch {
	case t == reflect.TypeFor[pipeline.Duration]():
		return "duration"
	case t.Kind() == reflect.Int && reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]()):
		return "text"
	case t == reflect.TypeFor[pipeline.Secret]():
		return "secret"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return "whole number"
	case reflect.Float64, reflect.Float32:
		return "number"
	case reflect.Slice:
		return "list of " + plural(kind(t.Elem()))
	case reflect.Array:
		return fmt.Sprintf("%d %s", t.Len(), plural(kind(t.Elem())))
	case reflect.Map, reflect.Struct:
		return "table"
	case reflect.Interface:
		return "any value"
	}
	return "text"
}

func plural(kind string) string {
	if strings.HasPrefix(kind, "list") || kind == "true or false" {
		return kind
	}
	return kind + "s"
}

// unit is that of a number, as far as type and name say.
func unit(t reflect.Type, key string) string {
	last := key[strings.LastIndex(key, ".")+1:]
	if !strings.HasSuffix(kind(t), "number") {
		return ""
	}
	switch {
	case strings.HasSuffix(last, "_bytes"):
		return "bytes"
	case strings.HasSuffix(last, "_s"):
		return "seconds"
	case strings.HasSuffix(last, "_percent"):
		return "percent"
	case strings.HasSuffix(last, "_kb"):
		return "KiB"
	case strings.HasSuffix(last, "_length"):
		return "characters"
	case strings.HasSuffix(last, "_mib"), strings.HasSuffix(last, "_mb"):
		return "MiB"
	case strings.HasSuffix(last, "tokens"), strings.HasSuffix(last, "_len"):
		return "tokens"
	case strings.HasSuffix(last, "_steps") && !strings.Contains(last, "off_policy"):
		return "optimizer steps"
	}
	return ""
}

// value is a default as TOML.
func value(t *testing.T, v reflect.Value) string {
	t.Helper()
	if v.Kind() == reflect.Pointer || v.Kind() == reflect.Map || v.Type() == reflect.TypeFor[pipeline.Secret]() {
		return ""
	}
	if v.Kind() == reflect.Slice && v.Len() == 0 {
		return "[]"
	}
	if d, ok := v.Interface().(pipeline.Duration); ok {
		return strconv.Quote(Short(d))
	}
	if v.Kind() == reflect.Float64 {
		return number(v.Float())
	}
	text, err := toml.Marshal(map[string]any{"v": v.Interface()})
	if err != nil {
		t.Fatal(err)
	}
	line := strings.TrimSuffix(strings.TrimPrefix(string(text), "v = "), "\n")
	if !strings.ContainsAny(line, `"\`) {
		line = strings.ReplaceAll(line, "'", `"`)
	}
	return strings.ReplaceAll(line, "\n", " ")
}
