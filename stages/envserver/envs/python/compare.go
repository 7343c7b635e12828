package python

import (
	"bytes"
	"encoding/json"
	"math"
	"math/big"
)

// equal reports whether two JSON values are the same: whole numbers exactly, others to nine digits; true is not 1, and a text is no
// number.
func equal(a, b json.RawMessage) bool {
	var values [2]any
	for i, text := range []json.RawMessage{a, b} {
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if d.Decode(&values[i]) != nil {
			return false
		}
	}
	return same(values[0], values[1])
}

func same(a, b any) bool {
	switch a := a.(type) {
	case []any:
		b, ok := b.([]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for i := range a {
			if !same(a[i], b[i]) {
				return false
			}
		}
		return true
	case map[string]any:
		b, ok := b.(map[string]any)
		if !ok || len(a) != len(b) {
			return false
		}
		for k, v := range a {
			w, ok := b[k]
			if !ok || !same(v, w) {
				return false
			}
		}
		return true
	case json.Number:
		b, ok := b.(json.Number)
		return ok && sameNumber(a, b)
	}
	return a == b // texts, truth values and null; a list or object on the other side is of another type
}

func sameNumber(a, b json.Number) bool {
	x, whole1 := new(big.Int).SetString(a.String(), 10)
	y, whole2 := new(big.Int).SetString(b.String(), 10)
	if whole1 && whole2 {
		return x.Cmp(y) == 0
	}
	f, err1 := a.Float64()
	g, err2 := b.Float64()
	return err1 == nil && err2 == nil && math.Abs(f-g) <= 1e-9*max(1, math.Abs(f), math.Abs(g))
}
