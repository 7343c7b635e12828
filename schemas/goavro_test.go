package schemas

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/linkedin/goavro/v2"
)

func init() { goavro.MaxBlockCount = maxBlock }

// goavro, which walks the schema itself, writes the bytes that this package writes, and reads them.
func TestOracle_Goavro(t *testing.T) {
	for _, name := range names {
		c := registry().newest[name]
		writer := orderedCodec(t, c.avro.Schema())
		rng := rand.New(rand.NewPCG(23, 29))
		records := []Record{newRecord(name)}
		for range 100 {
			records = append(records, random(rng, name))
		}
		for _, r := range records {
			got, err := Encode(r)
			if err != nil {
				t.Fatal(err)
			}
			want, err := writer.BinaryFromNative(bytes.Clone(c.header), native(reflect.ValueOf(r).Elem(), true))
			if err != nil {
				t.Fatalf("%s: goavro: %v", name, err)
			}
			if !bytes.Equal(got, want) {
				t.Fatalf("%+v:\ngot  %x\nwant %x", r, got, want)
			}
			read, rest, err := c.avro.NativeFromBinary(got[10:])
			if err != nil || len(rest) > 0 {
				t.Fatalf("goavro leaves %d bytes: %v", len(rest), err)
			}
			if want := native(reflect.ValueOf(r).Elem(), false); !reflect.DeepEqual(read, want) {
				t.Fatalf("goavro read\n%v\nwant\n%v", read, want)
			}
		}
	}
}

// What goavro writes in an old version of a schema reads as the record without the fields that came later.
func TestOracle_OldVersions(t *testing.T) {
	for _, old := range frozen(t) {
		rng := rand.New(rand.NewPCG(31, 37))
		writer, had := orderedCodec(t, old.avro.Schema()), fields(t, old.avro.Schema())
		for range 50 {
			r := random(rng, old.name)
			b, err := writer.BinaryFromNative(nil, native(reflect.ValueOf(r).Elem(), true))
			if err != nil {
				t.Fatal(err)
			}
			got, err := Version{registry().byFingerprint[old.avro.Rabin]}.codec.read(b)
			if err != nil {
				t.Fatalf("%s %016x: %v", old.name, old.avro.Rabin, err)
			}
			forget(reflect.ValueOf(r).Elem(), had)
			if !reflect.DeepEqual(got, r) {
				t.Fatalf("%s %016x: got\n%+v\nwant\n%+v", old.name, old.avro.Rabin, got, r)
			}
		}
	}
}

// forget empties the fields that are not in had.
func forget(v reflect.Value, had map[string]json.RawMessage) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			forget(v.Elem(), had)
		}
	case reflect.Slice:
		for i := range v.Len() {
			forget(v.Index(i), had)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if _, ok := had[v.Type().Name()+"."+v.Type().Field(i).Tag.Get("avro")]; !ok {
				v.Field(i).SetZero()
			}
			forget(v.Field(i), had)
		}
	}
}

// native is a value in goavro's native form: records are maps, unions are maps of one entry named by the branch. goavro
// writes a map in Go's random order, so with ordered set it is its entries in the order of their keys (see orderedCodec).
func native(v reflect.Value, ordered bool) any {
	switch v.Kind() {
	case reflect.Int:
		return int32(v.Int())
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		branch := map[reflect.Kind]string{reflect.Int64: "long", reflect.Float64: "double", reflect.Struct: "prl." + v.Type().Elem().Name()}
		return map[string]any{branch[v.Elem().Kind()]: native(v.Elem(), ordered)}
	case reflect.Slice:
		if v.Type().Elem().Kind() == reflect.Uint8 {
			return append([]byte{}, v.Bytes()...)
		}
		list := make([]any, v.Len())
		for i := range list {
			list[i] = native(v.Index(i), ordered)
		}
		return list
	case reflect.Map:
		entries := map[string]any{}
		for _, k := range v.MapKeys() {
			entries[k.String()] = native(v.MapIndex(k), ordered)
		}
		if !ordered {
			return entries
		}
		list := []any{}
		for _, k := range slices.Sorted(maps.Keys(entries)) {
			list = append(list, map[string]any{"key": k, "value": entries[k]})
		}
		return list
	case reflect.Struct:
		record := map[string]any{}
		for i := range v.NumField() {
			record[v.Type().Field(i).Tag.Get("avro")] = native(v.Field(i), ordered)
		}
		return record
	}
	return v.Interface()
}

// orderedCodec is goavro's of a schema in which every map is an array of (key, value) records, which Avro encodes to the
// same bytes.
func orderedCodec(t *testing.T, schema string) *goavro.Codec {
	t.Helper()
	var tree any
	if err := json.Unmarshal([]byte(schema), &tree); err != nil {
		t.Fatal(err)
	}
	entries := 0
	raw, err := json.Marshal(ordered(tree, &entries))
	if err != nil {
		t.Fatal(err)
	}
	c, err := goavro.NewCodec(string(raw))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// ordered replaces every map of a schema by an array. n names the entries' types.
func ordered(t any, n *int) any {
	switch t := t.(type) {
	case []any:
		for i := range t {
			t[i] = ordered(t[i], n)
		}
	case map[string]any:
		delete(t, "default") // a map's would not fit, and a writer needs none
		for _, k := range []string{"fields", "type", "items", "values"} {
			if _, ok := t[k]; ok {
				t[k] = ordered(t[k], n)
			}
		}
		if t["type"] == "map" {
			*n++
			return map[string]any{"type": "array", "items": map[string]any{
				"type": "record", "name": fmt.Sprintf("MapEntry%d", *n), "fields": []any{
					map[string]any{"name": "key", "type": "string"}, map[string]any{"name": "value", "type": t["values"]},
				}}}
		}
	}
	return t
}
