package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/maphash"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
)

// A canon sums the values of a record in a form that a Kafka record and its Parquet row have in common: fields by their
// Avro names, text as valid UTF-8, tensors by their SHA-256, so that one in the blob store need not be read.
type canon struct {
	hash  maphash.Hash
	blobs map[string]string // SHA-256 of tensors that a row has left in the blob store, by path
}

var canonSeed = maphash.MakeSeed()

// recordSum sums a record.
func recordSum(r schemas.Record) uint64 {
	c := canon{}
	c.hash.SetSeed(canonSeed)
	c.record("", reflect.ValueOf(r).Elem())
	return c.hash.Sum64()
}

// rowSum sums a row as if it were a record of the type t; values are as parquet-go reads them into any.
func rowSum(t reflect.Type, row map[string]any) (s uint64, err error) {
	c := canon{blobs: map[string]string{}}
	c.hash.SetSeed(canonSeed)
	if list, ok := row["blobs"].([]any); ok {
		for _, b := range list {
			if ref, ok := b.(map[string]any); ok {
				c.blobs[fmt.Sprint(ref["path"])] = fmt.Sprint(ref["sha256"])
			}
		}
	}
	err = c.row("", t, row)
	return c.hash.Sum64(), err
}

// textSum sums a text alone.
func textSum(s string) uint64 { return maphash.String(canonSeed, strings.ToValidUTF8(s, "\uFFFD")) }

func (c *canon) number(v uint64) {
	c.hash.Write(binary.LittleEndian.AppendUint64(nil, v)) //nolint:errcheck // a hash takes everything
}

func (c *canon) text(s string) {
	c.number(uint64(len(s)))
	c.hash.WriteString(s) //nolint:errcheck // a hash takes everything
}

func (c *canon) tensor(data []byte) {
	if len(data) == 0 {
		c.text("")
		return
	}
	s := sha256.Sum256(data)
	c.text(hex.EncodeToString(s[:]))
}

func (c *canon) record(path string, v reflect.Value) {
	switch x := v.Interface().(type) {
	case schemas.Int32s:
		c.tensor(x)
		return
	case schemas.Float32s:
		c.tensor(x)
		return
	case schemas.Uint8s:
		c.tensor(x)
		return
	case schemas.Blob:
		c.tensor(x)
		return
	case []byte:
		c.text(string(x))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		c.number(bit(v.Bool()))
	case reflect.Int, reflect.Int32, reflect.Int64:
		c.number(uint64(v.Int()))
	case reflect.Float64:
		c.number(math.Float64bits(v.Float()))
	case reflect.String:
		c.text(strings.ToValidUTF8(v.String(), "\uFFFD"))
	case reflect.Pointer:
		c.number(bit(!v.IsNil()))
		if !v.IsNil() {
			c.record(path, v.Elem())
		}
	case reflect.Slice:
		c.number(uint64(v.Len()))
		for i := range v.Len() {
			c.record(fmt.Sprintf("%s%d.", path, i), v.Index(i))
		}
	case reflect.Map:
		c.number(uint64(v.Len()))
		for _, k := range slices.SortedFunc(slices.Values(v.MapKeys()), func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) }) {
			c.text(strings.ToValidUTF8(k.String(), "\uFFFD"))
			c.record(path, v.MapIndex(k))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i).Tag.Get("avro"); name != "blobs" {
				c.record(path+name+".", v.Field(i))
			}
		}
	default:
		panic(fmt.Sprintf("a record holds a %v", v.Type()))
	}
}

func bit(b bool) uint64 {
	if b {
		return 1
	}
	return 0
}

// row walks a row's value beside the type of the record's.
func (c *canon) row(path string, t reflect.Type, value any) error {
	switch reflect.Zero(t).Interface().(type) {
	case schemas.Int32s, schemas.Float32s, schemas.Uint8s:
		return c.rowTensor(strings.TrimSuffix(path, "."), t, value)
	case schemas.Blob:
		return c.rowBlob(strings.TrimSuffix(path, "."), value)
	case []byte:
		return c.rowText(path, value)
	}
	switch t.Kind() {
	case reflect.Bool:
		b, ok := value.(bool)
		c.number(bit(b))
		return must(ok, path, value)
	case reflect.Int, reflect.Int64:
		v := reflect.ValueOf(value)
		if !v.IsValid() || !v.CanInt() {
			return must(false, path, value)
		}
		c.number(uint64(v.Int()))
	case reflect.Float64:
		f, ok := value.(float64)
		c.number(math.Float64bits(f))
		return must(ok, path, value)
	case reflect.String:
		return c.rowText(path, value)
	case reflect.Pointer:
		if p := reflect.ValueOf(value); p.Kind() == reflect.Pointer { // a nullable value of a map
			if value = nil; !p.IsNil() {
				value = p.Elem().Interface()
			}
		}
		c.number(bit(value != nil))
		if value != nil {
			return c.row(path, t.Elem(), value)
		}
	case reflect.Slice:
		return c.rowList(path, t, value)
	case reflect.Map:
		entries, ok := value.(map[string]any)
		c.number(uint64(len(entries)))
		for _, k := range slices.Sorted(maps.Keys(entries)) {
			c.text(k)
			if err := c.row(path, t.Elem(), entries[k]); err != nil {
				return err
			}
		}
		return must(ok, path, value)
	case reflect.Struct:
		fields, ok := value.(map[string]any)
		if !ok {
			return must(false, path, value)
		}
		for i := range t.NumField() {
			f := t.Field(i)
			name := f.Tag.Get("avro")
			column, ok := fields[name]
			switch {
			case name == "blobs":
			case !ok: // the file is older than the field
				c.record(path+name+".", reflect.Zero(f.Type))
			default:
				if err := c.row(path+name+".", f.Type, column); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func must(ok bool, path string, value any) error {
	if ok {
		return nil
	}
	return fmt.Errorf("column %s holds a %T", strings.TrimSuffix(path, "."), value)
}

func (c *canon) rowText(path string, value any) error {
	switch v := value.(type) {
	case string:
		c.text(v)
	case []byte:
		c.text(string(v))
	default:
		return must(false, path, value)
	}
	return nil
}

func (c *canon) rowList(path string, t reflect.Type, value any) error {
	list, ok := value.([]any)
	c.number(uint64(len(list)))
	for i, v := range list {
		if err := c.row(fmt.Sprintf("%s%d.", path, i), t.Elem(), v); err != nil {
			return err
		}
	}
	return must(ok, path, value)
}

// rowBlob takes bytes, or what the blob store holds by its name.
func (c *canon) rowBlob(path string, value any) error {
	var data []byte
	switch v := value.(type) {
	case string:
		data = []byte(v)
	case []byte:
		data = v
	default:
		return must(false, path, value)
	}
	if name, stored := c.blobs[path]; stored && len(data) == 0 {
		c.text(name)
		return nil
	}
	c.tensor(data)
	return nil
}

// rowTensor packs a list of numbers again, or takes what the blob store holds by its name.
func (c *canon) rowTensor(path string, t reflect.Type, value any) error {
	list, ok := value.([]any)
	if name, stored := c.blobs[path]; stored && len(list) == 0 {
		c.text(name)
		return nil
	}
	data := make([]byte, 0, 4*len(list))
	for _, v := range list {
		switch n := v.(type) {
		case float32:
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(n))
		case int32:
			if t == reflect.TypeFor[schemas.Uint8s]() {
				data = append(data, byte(n))
			} else {
				data = binary.LittleEndian.AppendUint32(data, uint32(n))
			}
		default:
			return must(false, path, v)
		}
	}
	c.tensor(data)
	return must(ok, path, value)
}
