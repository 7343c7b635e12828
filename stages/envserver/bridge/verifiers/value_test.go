package verifiers

import (
	"bytes"
	"math"
	"reflect"
	"strings"
	"testing"
)

func TestUnpack(t *testing.T) {
	array := object{"__nd__": true, "dtype": "uint8", "shape": []any{int64(2)}, "data": []byte{1, 2}}
	for _, v := range []any{
		nil, true, "text", []byte{0, 1}, int64(-3), 1.5, []any{}, object{"a": []any{object{"b": nil}}}, array,
	} {
		got, err := unpack(pack(object{"v": v}))
		if err != nil || !reflect.DeepEqual(got, object{"v": v}) {
			t.Errorf("%v is %v, %v", v, got, err)
		}
	}
	// Keys that are whole numbers, as links and routing repairs have.
	got, err := unpack([]byte{0x82, 0x03, 0xa1, 'x', 0xd1, 0xff, 0x00, 0xc3})
	if want := (object{"3": "x", "-256": true}); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v, %v", got, err)
	}
}

func TestUnpackBounds(t *testing.T) {
	list := func(n int) []byte {
		return append([]byte{0xdd, 0, byte(n >> 16), byte(n >> 8), byte(n)}, make([]byte, n)...)
	}
	for want, b := range map[string][]byte{
		"more than":     list(mostValues),
		"deep":          bytes.Repeat([]byte{0x91}, 1<<20),
		"extension":     {0xd4, 0, 0},
		"follows":       {0xc0, 0xc0},
		"EOF":           {0xdb, 0xff, 0xff, 0xff, 0xff},
		"a key of type": {0x81, 0xc0, 0xc0},
	} {
		if _, err := unpack(b); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one with %q", err, want)
		}
	}
}

// Whole numbers stay whole from JSON to msgpack, and what is no number in JSON is null there.
func TestJSON(t *testing.T) {
	o, err := fromJSON([]byte(`{"idx":9007199254740993,"x":0.5,"in":[{"n":1e3}],"big":123456789012345678901234567890}`))
	want := object{"idx": int64(9007199254740993), "x": 0.5, "in": []any{object{"n": 1000.0}}, "big": 123456789012345678901234567890.0}
	if err != nil || !reflect.DeepEqual(o, want) {
		t.Errorf("%v, %v", o, err)
	}
	if got := string(toJSON(object{"a": math.NaN(), "b": []any{math.Inf(1), 1.0}, "c": []byte("hi")})); got != `{"a":null,"b":[null,1],"c":"aGk="}` {
		t.Error(got)
	}
	for _, bad := range []string{``, `null`, `[]`, `{`} {
		if o, err := fromJSON([]byte(bad)); err == nil {
			t.Errorf("%q is %v", bad, o)
		}
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(pack(object{"trace": "t", "links": object{"1": []any{}}}))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := unpack(b); err == nil {
			toJSON(v) // it never panics
		}
	})
}
