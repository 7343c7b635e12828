package schemas

import (
	"maps"
	"slices"
)

// The conversions below join the generated types to goavro's native form: records are maps, unions are maps of one
// entry named by the branch, a field that an old schema lacks is nil and becomes the zero value. A map is written as
// its entries in the order of their keys (see ordered) and read as a map.

func nonNil(b []byte) []byte {
	if b == nil {
		return []byte{}
	}
	return b
}

func listOf[T any](s []T, native func(*T) any) []any {
	out := make([]any, len(s))
	for i := range s {
		out[i] = native(&s[i])
	}
	return out
}

func mapOf[T any](m map[string]T, native func(*T) any) []any {
	out := make([]any, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		v := m[k]
		out = append(out, map[string]any{"key": k, "value": native(&v)})
	}
	return out
}

func optionOf[T any](branch string, v *T, native func(*T) any) any {
	if v == nil {
		return nil
	}
	return map[string]any{branch: native(v)}
}

func toList[T any](n any, from func(*T, any)) []T {
	in, _ := n.([]any)
	if len(in) == 0 {
		return nil
	}
	out := make([]T, len(in))
	for i := range in {
		from(&out[i], in[i])
	}
	return out
}

func toMap[T any](n any, from func(*T, any)) map[string]T {
	in, _ := n.(map[string]any)
	if len(in) == 0 {
		return nil
	}
	out := make(map[string]T, len(in))
	for k, e := range in {
		var v T
		from(&v, e)
		out[k] = v
	}
	return out
}

func toOption[T any](n any, from func(*T, any)) *T {
	union, _ := n.(map[string]any)
	for _, e := range union {
		v := new(T)
		from(v, e)
		return v
	}
	return nil
}

func asRecord(n any) map[string]any { m, _ := n.(map[string]any); return m }
func asBool(n any) bool             { v, _ := n.(bool); return v }
func asInt(n any) int               { v, _ := n.(int32); return int(v) }
func asLong(n any) int64            { v, _ := n.(int64); return v }
func asDouble(n any) float64        { v, _ := n.(float64); return v }
func asString(n any) string         { v, _ := n.(string); return v }

func asBytes(n any) []byte {
	v, _ := n.([]byte)
	if len(v) == 0 {
		return nil
	}
	return slices.Clip(v) // it shares the message's memory: appending must not overwrite what follows
}
