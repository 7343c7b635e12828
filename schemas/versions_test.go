package schemas

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"testing"

	"github.com/hamba/avro/v2"
)

// records.gen.go is what the generator makes of the *.avsc files.
func TestGenerated_NoDrift(t *testing.T) {
	out := filepath.Join(t.TempDir(), "records.gen.go")
	if msg, err := exec.Command("go", "run", "./gen", "-o", out).CombinedOutput(); err != nil {
		t.Fatalf("generate: %v\n%s", err, msg)
	}
	want, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("records.gen.go")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatal("records.gen.go is not what the *.avsc files give: go generate ./schemas")
	}
}

// Every schema that can be written is also kept, so that no later binary meets a topic it cannot read.
func TestVersions_HoldTheNewest(t *testing.T) {
	if len(registry().newest) != len(names) {
		t.Fatalf("%d records, the tests know %d", len(registry().newest), len(names))
	}
	kept := map[string]bool{}
	for _, v := range frozen(t) {
		kept[v.name+string(v.header)] = true
	}
	for _, name := range names {
		if c := registry().newest[name]; !kept[name+string(c.header)] {
			t.Errorf("%s %016x is not in versions/: cd schemas && go run ./gen -freeze", name, c.avro.Rabin)
		}
	}
}

// Every version that was ever released is readable: by the rules of Avro, and by this package.
func TestVersions_StayReadable(t *testing.T) {
	compat := avro.NewSchemaCompatibility()
	for _, old := range frozen(t) {
		newest := registry().newest[old.name]
		if newest == nil {
			t.Errorf("record %s is gone: its old topics cannot be read", old.name)
			continue
		}
		if err := compat.Compatible(parse(t, newest.avro.Schema()), parse(t, old.avro.Schema())); err != nil {
			t.Errorf("%s %016x cannot be read by the newest: %v", old.name, old.avro.Rabin, err)
		}
		b, err := old.avro.BinaryFromNative(bytes.Clone(old.header), zeroNative(old.avro.Schema()))
		if err != nil {
			t.Fatal(err)
		}
		known := registry().byFingerprint[old.avro.Rabin]
		if known == nil {
			t.Errorf("%s %016x is not embedded", old.name, old.avro.Rabin)
			continue
		}
		if _, err := known.read(b[10:]); err != nil {
			t.Errorf("%s %016x: %v", old.name, old.avro.Rabin, err)
		}
	}
}

// A field that an old version lacks reads as Go's zero value, so that must be its default.
func TestVersions_AddedFieldsDefaultToZero(t *testing.T) {
	for _, old := range frozen(t) {
		had := fields(t, old.avro.Schema())
		for name, def := range fields(t, registry().newest[old.name].avro.Schema()) {
			if _, ok := had[name]; ok {
				continue
			}
			if !slices.Contains([]string{"null", "0", "0.0", `""`, "false", "[]", "{}"}, string(def)) {
				t.Errorf("%s.%s was added with default %s; give it the zero value", old.name, name, def)
			}
		}
	}
}

// An older version than any that is kept: the newest without its last fields, and without one in the middle.
func TestVersions_MissingFieldsReadAsZero(t *testing.T) {
	var s map[string]any
	if err := json.Unmarshal([]byte(registry().newest["Task"].avro.Schema()), &s); err != nil {
		t.Fatal(err)
	}
	all := s["fields"].([]any)
	s["fields"] = append(all[:1:1], all[2:8]...) // env to task_index, without eval
	raw, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	old, err := newCodec(raw)
	if err != nil {
		t.Fatal(err)
	}
	b, err := orderedCodec(t, string(raw)).BinaryFromNative(nil, native(reflect.ValueOf(Task{Env: "catch", GroupSize: 2, TaskIndex: 5, Seed: 9}), true))
	if err != nil {
		t.Fatal(err)
	}
	got, err := old.read(b)
	if want := (&Task{Env: "catch", GroupSize: 2, TaskIndex: 5}); err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v (%v), want %+v", got, err, want)
	}
}

// frozen is the codecs of versions/.
func frozen(t *testing.T) []*codec {
	t.Helper()
	paths, err := fs.Glob(files, "versions/*.avsc")
	if err != nil || len(paths) < len(names) {
		t.Fatalf("%d kept versions (%v)", len(paths), err)
	}
	var out []*codec
	for _, path := range paths {
		raw, err := files.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		c, err := newCodec(raw)
		if err != nil {
			t.Fatalf("%s: %v", path, err)
		}
		out = append(out, c)
	}
	return out
}

func parse(t *testing.T, schema string) avro.Schema {
	t.Helper()
	s, err := avro.ParseWithCache(schema, "", &avro.SchemaCache{})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// fields lists the fields of a schema's records as Record.field, with their defaults.
func fields(t *testing.T, schema string) map[string]json.RawMessage {
	t.Helper()
	out := map[string]json.RawMessage{}
	var walk func(json.RawMessage)
	walk = func(raw json.RawMessage) {
		var union []json.RawMessage
		if json.Unmarshal(raw, &union) == nil {
			for _, u := range union {
				walk(u)
			}
			return
		}
		var s struct {
			Name                string
			Type, Items, Values json.RawMessage
			Fields              []struct {
				Name          string
				Type, Default json.RawMessage
			}
		}
		if json.Unmarshal(raw, &s) != nil {
			return // a name
		}
		walk(s.Items)
		walk(s.Values)
		for _, f := range s.Fields {
			out[s.Name+"."+f.Name] = f.Default
			walk(f.Type)
		}
	}
	walk(json.RawMessage(schema))
	return out
}

// zeroNative is the zero value of a record's schema in goavro's native form.
func zeroNative(schema string) map[string]any {
	var s struct {
		Fields []struct {
			Name string
			Type any
		}
	}
	if err := json.Unmarshal([]byte(schema), &s); err != nil {
		panic(err)
	}
	out := map[string]any{}
	for _, f := range s.Fields {
		out[f.Name] = zero(f.Type)
	}
	return out
}

func zero(t any) any {
	switch t := t.(type) {
	case []any:
		return nil
	case map[string]any:
		switch t["type"] {
		case "array":
			return []any{}
		case "map":
			return map[string]any{}
		case "record":
			raw, err := json.Marshal(t)
			if err != nil {
				panic(err)
			}
			return zeroNative(string(raw))
		}
		return zero(t["type"])
	}
	switch t {
	case "boolean":
		return false
	case "bytes":
		return []byte{}
	case "string":
		return ""
	case "double":
		return 0.0
	case "int", "long":
		return int64(0)
	}
	return native(reflect.ValueOf(BlobRef{}), true) // the one record that is used by name
}
