package sink

import (
	"encoding/binary"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prl-project/prl/schemas"
)

// columns turns a Go type of package schemas into Parquet columns: the same fields under their Avro names, tensors as
// lists of numbers, records as structs, maps as MAP, what is optional as null.
//
//	Avro               Go           Parquet, DuckDB
//	tensor int32       Int32s       LIST of INT32, INTEGER[]
//	tensor float32     Float32s     LIST of FLOAT, FLOAT[]
//	tensor uint8       Uint8s       LIST of INT32, INTEGER[]
//	int, long          int, int64   INT32, INT64
//	array of records   []T          LIST of groups, STRUCT(…)[]
//	map                map[string]T MAP(VARCHAR, …)
//	["null", T]        *T           T, nullable
//	bytes              []byte, Blob BLOB
type columns struct {
	Type reflect.Type
	// set writes src (of the schemas type) into dst (of Type), whatever is there, whose memory it uses again.
	set func(dst, src reflect.Value)
	// get is the way back: it writes src (of Type) into dst (of the schemas type).
	get func(dst, src reflect.Value)
}

// encodings are how columns are stored whose values are not best left to compression alone, in the words of parquet-go's tags:
// numbers that are hardly ever equal byte by byte (split, which DuckDB reads for floats only), few different ones by number
// (dict), those that count upwards by their differences (delta). position has its own.
var encodings = map[string]string{
	"logprobs": "split", "ref_logprobs": "split",
	"mask": "dict", "advantages": "dict", "temperatures": "dict", "token_rewards": "dict", "ce_weights": "dict", "ref_kl_weights": "dict",
	"time_ms": "delta",
}

// maxDictionary bounds the bytes of a dict column's different values; where there are more the rest is plain.
const maxDictionary = 1 << 18

func columnsOf(t reflect.Type) columns {
	switch reflect.Zero(t).Interface().(type) {
	case schemas.Int32s:
		return tensor(4, func(b []byte) int32 { return int32(binary.LittleEndian.Uint32(b)) },
			func(v []int32) []byte { return schemas.PackInt32s(v) })
	case schemas.Float32s:
		return tensor(4, func(b []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(b)) },
			func(v []float32) []byte { return schemas.PackFloat32s(v) })
	case schemas.Uint8s:
		return tensor(1, func(b []byte) int32 { return int32(b[0]) }, func(v []int32) []byte {
			packed := make([]byte, len(v))
			for i, x := range v {
				packed[i] = byte(x)
			}
			return packed
		})
	case []byte, schemas.Blob:
		return columns{Type: t, set: reflect.Value.Set, get: reflect.Value.Set}
	}
	switch t.Kind() {
	case reflect.Bool, reflect.Int64, reflect.Float64:
		return columns{Type: t, set: reflect.Value.Set, get: reflect.Value.Set}
	case reflect.Int:
		same := func(dst, src reflect.Value) { dst.SetInt(src.Int()) }
		return columns{Type: reflect.TypeFor[int32](), set: same, get: same}
	case reflect.String:
		return columns{Type: t, set: func(dst, src reflect.Value) { dst.SetString(readable(src.String())) }, get: reflect.Value.Set}
	case reflect.Pointer:
		return optional(columnsOf(t.Elem()))
	case reflect.Slice:
		return list(columnsOf(t.Elem()))
	case reflect.Map:
		return mapping(columnsOf(t.Elem()))
	case reflect.Struct:
		return group(t)
	}
	panic(fmt.Sprintf("a record holds a %v, for which there is no column", t))
}

// readable is s in valid UTF-8, which SQL engines insist on: a model that writes bytes can stop inside a character.
func readable(s string) string {
	if utf8.ValidString(s) {
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// tensor is a list of numbers, each of which has some bytes where they are packed.
func tensor[T any](size int, number func([]byte) T, pack func([]T) []byte) columns {
	return columns{Type: reflect.TypeFor[[]T](),
		set: func(dst, src reflect.Value) {
			packed, list := src.Bytes(), dst.Addr().Interface().(*[]T)
			n := len(packed) / size
			*list = slices.Grow((*list)[:0], n)[:n]
			for i := range *list {
				(*list)[i] = number(packed[i*size : (i+1)*size])
			}
		},
		get: func(dst, src reflect.Value) { dst.SetBytes(pack(src.Interface().([]T))) }}
}

func optional(elem columns) columns {
	through := func(move func(dst, src reflect.Value)) func(dst, src reflect.Value) {
		return func(dst, src reflect.Value) {
			if src.IsNil() {
				dst.SetZero()
				return
			}
			if dst.IsNil() {
				dst.Set(reflect.New(dst.Type().Elem()))
			}
			move(dst.Elem(), src.Elem())
		}
	}
	return columns{Type: reflect.PointerTo(elem.Type), set: through(elem.set), get: through(elem.get)}
}

func list(elem columns) columns {
	each := func(move func(dst, src reflect.Value)) func(dst, src reflect.Value) {
		return func(dst, src reflect.Value) {
			n := src.Len()
			if dst.Cap() < n {
				dst.Set(reflect.MakeSlice(dst.Type(), n, n))
			}
			dst.SetLen(n)
			for i := range n {
				move(dst.Index(i), src.Index(i))
			}
		}
	}
	return columns{Type: reflect.SliceOf(elem.Type), set: each(elem.set), get: each(elem.get)}
}

func mapping(elem columns) columns {
	each := func(move func(dst, src reflect.Value)) func(dst, src reflect.Value) {
		return func(dst, src reflect.Value) {
			if dst.IsNil() {
				dst.Set(reflect.MakeMapWithSize(dst.Type(), src.Len()))
			}
			dst.Clear()
			for entries := src.MapRange(); entries.Next(); {
				v := reflect.New(dst.Type().Elem()).Elem()
				move(v, entries.Value())
				dst.SetMapIndex(reflect.ValueOf(readable(entries.Key().String())), v)
			}
		}
	}
	return columns{Type: reflect.MapOf(reflect.TypeFor[string](), elem.Type), set: each(elem.set), get: each(elem.get)}
}

func group(t reflect.Type) columns {
	elems := make([]columns, t.NumField())
	fields := make([]reflect.StructField, t.NumField())
	for i := range elems {
		f := t.Field(i)
		elems[i] = columnsOf(f.Type)
		fields[i] = column(f.Name, f.Tag.Get("avro"), elems[i].Type)
	}
	return columns{Type: reflect.StructOf(fields), set: func(dst, src reflect.Value) {
		for i, e := range elems {
			e.set(dst.Field(i), src.Field(i))
		}
	}, get: func(dst, src reflect.Value) {
		for i, e := range elems {
			e.get(dst.Field(i), src.Field(i))
		}
	}}
}

// column is a field with the tags that parquet-go reads.
func column(field, name string, t reflect.Type) reflect.StructField {
	encoding, tag := encodings[name], ""
	if encoding != "" {
		encoding = "," + encoding
	}
	if t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8 {
		tag = fmt.Sprintf("parquet:%q", name+",list")
		if encoding != "" {
			tag += fmt.Sprintf(" parquet-element:%q", encoding)
		}
	} else {
		tag = fmt.Sprintf("parquet:%q", name+encoding)
	}
	return reflect.StructField{Name: field, Type: t, Tag: reflect.StructTag(tag)}
}
