package sink

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/prl-project/prl/schemas"
)

// columns turns a Go type of package schemas into the type of its Parquet columns: the same fields under their Avro
// names, tensors as lists of numbers, records as structs, maps as MAP, what is optional as null.
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
	// set writes src (of the schemas type) into dst (of Type).
	set func(dst, src reflect.Value)
	// get is the way back: it writes src (of Type) into dst (of the schemas type).
	get func(dst, src reflect.Value)
}

func columnsOf(t reflect.Type) columns {
	switch reflect.Zero(t).Interface().(type) {
	case schemas.Int32s:
		return columns{reflect.TypeFor[[]int32](), func(dst, src reflect.Value) {
			dst.Set(reflect.ValueOf(src.Interface().(schemas.Int32s).Values()))
		}, func(dst, src reflect.Value) {
			dst.SetBytes(schemas.PackInt32s(src.Interface().([]int32)))
		}}
	case schemas.Float32s:
		return columns{reflect.TypeFor[[]float32](), func(dst, src reflect.Value) {
			dst.Set(reflect.ValueOf(src.Interface().(schemas.Float32s).Values()))
		}, func(dst, src reflect.Value) {
			dst.SetBytes(schemas.PackFloat32s(src.Interface().([]float32)))
		}}
	case schemas.Uint8s:
		return columns{reflect.TypeFor[[]int32](), func(dst, src reflect.Value) {
			values := make([]int32, src.Len())
			for i, b := range src.Bytes() {
				values[i] = int32(b)
			}
			dst.Set(reflect.ValueOf(values))
		}, func(dst, src reflect.Value) {
			packed := make([]byte, src.Len())
			for i, v := range src.Interface().([]int32) {
				packed[i] = byte(v)
			}
			dst.SetBytes(packed)
		}}
	case []byte, schemas.Blob:
		return columns{t, reflect.Value.Set, reflect.Value.Set}
	}
	switch t.Kind() {
	case reflect.Bool, reflect.Int64, reflect.Float64:
		return columns{t, reflect.Value.Set, reflect.Value.Set}
	case reflect.Int:
		same := func(dst, src reflect.Value) { dst.SetInt(src.Int()) }
		return columns{reflect.TypeFor[int32](), same, same}
	case reflect.String:
		return columns{t, func(dst, src reflect.Value) { dst.SetString(readable(src.String())) }, reflect.Value.Set}
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
func readable(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

func optional(elem columns) columns {
	through := func(move func(dst, src reflect.Value)) func(dst, src reflect.Value) {
		return func(dst, src reflect.Value) {
			if src.IsNil() {
				return
			}
			dst.Set(reflect.New(dst.Type().Elem()))
			move(dst.Elem(), src.Elem())
		}
	}
	return columns{reflect.PointerTo(elem.Type), through(elem.set), through(elem.get)}
}

func list(elem columns) columns {
	each := func(move func(dst, src reflect.Value)) func(dst, src reflect.Value) {
		return func(dst, src reflect.Value) {
			n := src.Len()
			dst.Set(reflect.MakeSlice(dst.Type(), n, n))
			for i := range n {
				move(dst.Index(i), src.Index(i))
			}
		}
	}
	return columns{reflect.SliceOf(elem.Type), each(elem.set), each(elem.get)}
}

func mapping(elem columns) columns {
	each := func(move func(dst, src reflect.Value)) func(dst, src reflect.Value) {
		return func(dst, src reflect.Value) {
			dst.Set(reflect.MakeMapWithSize(dst.Type(), src.Len()))
			for entries := src.MapRange(); entries.Next(); {
				v := reflect.New(dst.Type().Elem()).Elem()
				move(v, entries.Value())
				dst.SetMapIndex(reflect.ValueOf(readable(entries.Key().String())), v)
			}
		}
	}
	return columns{reflect.MapOf(reflect.TypeFor[string](), elem.Type), each(elem.set), each(elem.get)}
}

func group(t reflect.Type) columns {
	elems := make([]columns, t.NumField())
	fields := make([]reflect.StructField, t.NumField())
	for i := range elems {
		f := t.Field(i)
		elems[i] = columnsOf(f.Type)
		fields[i] = column(f.Name, f.Tag.Get("avro"), elems[i].Type)
	}
	return columns{reflect.StructOf(fields), func(dst, src reflect.Value) {
		for i, e := range elems {
			e.set(dst.Field(i), src.Field(i))
		}
	}, func(dst, src reflect.Value) {
		for i, e := range elems {
			e.get(dst.Field(i), src.Field(i))
		}
	}}
}

// column is a field with the tag that parquet-go reads.
func column(field, name string, t reflect.Type) reflect.StructField {
	switch {
	case t.Kind() == reflect.Slice && t.Elem().Kind() != reflect.Uint8:
		name += ",list"
	case t == reflect.TypeFor[time.Time]():
		name += ",timestamp(millisecond:local)"
	}
	return reflect.StructField{Name: field, Type: t, Tag: reflect.StructTag(fmt.Sprintf("parquet:%q", name))}
}
