package verifiers

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"strconv"

	"github.com/vmihailenco/msgpack/v5"
	"github.com/vmihailenco/msgpack/v5/msgpcode"
)

// What a server may make us hold: values that it says of one rollout, and how deep they lie in each other.
const (
	mostValues = 4 << 20
	mostDepth  = 100
)

// object is a map as the wire has it; keys that are whole numbers are their digits.
type object = map[string]any

// pack encodes what we say.
func pack(v object) []byte {
	var text bytes.Buffer
	e := msgpack.NewEncoder(&text)
	e.UseCompactInts(true)
	if err := e.Encode(v); err != nil {
		panic(err) // objects of JSON's types always can
	}
	return text.Bytes()
}

// unpack decodes what a server says: maps as objects, arrays as []any, texts, []byte, bool, nil, int64, uint64 and float64.
func unpack(b []byte) (any, error) {
	return unpackMore(b, new(int))
}

// unpackMore decodes another message of several; values are how many those before have had.
func unpackMore(b []byte, values *int) (any, error) {
	u := unpacker{d: msgpack.NewDecoder(bytes.NewReader(b)), values: values}
	v, err := u.value(0)
	switch {
	case err != nil:
		return nil, fmt.Errorf("msgpack of %d bytes: %w", len(b), err)
	case u.d.Buffered() != nil && more(u.d):
		return nil, fmt.Errorf("msgpack of %d bytes: something follows it", len(b))
	}
	return v, nil
}

func more(d *msgpack.Decoder) bool {
	_, err := d.PeekCode()
	return err == nil
}

type unpacker struct {
	d      *msgpack.Decoder
	values *int
}

func (u *unpacker) value(depth int) (any, error) {
	*u.values++
	switch {
	case *u.values > mostValues:
		return nil, fmt.Errorf("more than %d values", mostValues)
	case depth > mostDepth:
		return nil, fmt.Errorf("values lie in each other more than %d deep", mostDepth)
	}
	code, err := u.d.PeekCode()
	if err != nil {
		return nil, err
	}
	switch {
	case msgpcode.IsFixedMap(code) || code == msgpcode.Map16 || code == msgpcode.Map32:
		return u.object(depth)
	case msgpcode.IsFixedArray(code) || code == msgpcode.Array16 || code == msgpcode.Array32:
		return u.list(depth)
	case msgpcode.IsBin(code):
		return u.d.DecodeBytes()
	case msgpcode.IsExt(code):
		return nil, fmt.Errorf("an extension type")
	}
	return u.d.DecodeInterfaceLoose()
}

func (u *unpacker) object(depth int) (any, error) {
	n, err := u.d.DecodeMapLen()
	if err != nil {
		return nil, err
	}
	o := object{}
	for range n {
		key, err := u.value(depth + 1)
		if err != nil {
			return nil, err
		}
		v, err := u.value(depth + 1)
		if err != nil {
			return nil, err
		}
		switch key := key.(type) {
		case string:
			o[key] = v
		case int64:
			o[strconv.FormatInt(key, 10)] = v
		case uint64:
			o[strconv.FormatUint(key, 10)] = v
		default:
			return nil, fmt.Errorf("a key of type %T", key)
		}
	}
	return o, nil
}

func (u *unpacker) list(depth int) (any, error) {
	n, err := u.d.DecodeArrayLen()
	if err != nil {
		return nil, err
	}
	list := make([]any, 0, min(n, 1024))
	for range n {
		v, err := u.value(depth + 1)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}

// fromJSON makes of a JSON object what pack encodes: whole numbers stay whole.
func fromJSON(text json.RawMessage) (object, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	d.UseNumber()
	var o object
	if err := d.Decode(&o); err != nil {
		return nil, err
	}
	if o == nil {
		return nil, fmt.Errorf("%.100s is no JSON object", text)
	}
	return numbers(o).(object), nil
}

func numbers(v any) any {
	switch v := v.(type) {
	case json.Number:
		if n, err := strconv.ParseInt(v.String(), 10, 64); err == nil {
			return n
		}
		if n, err := v.Float64(); err == nil {
			return n
		}
		return v.String()
	case object:
		for k := range v {
			v[k] = numbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	}
	return v
}

// toJSON writes a value; bytes are base64, and a number that is none is null.
func toJSON(v any) json.RawMessage {
	text, err := json.Marshal(finite(v))
	if err != nil {
		panic(err) // what unpack gives always can
	}
	return text
}

func finite(v any) any {
	switch v := v.(type) {
	case float64:
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil
		}
	case object:
		o := object{}
		for k := range v {
			o[k] = finite(v[k])
		}
		return o
	case []any:
		list := make([]any, len(v))
		for i := range v {
			list[i] = finite(v[i])
		}
		return list
	}
	return v
}

// The fields of an object, in the type that is wanted; the zero value where there is another or none.

func textOf(o object, field string) string {
	text, _ := o[field].(string)
	return text
}

func flagOf(o object, field string) bool {
	set, _ := o[field].(bool)
	return set
}

func objectOf(o object, field string) object {
	in, _ := o[field].(object)
	return in
}

func listOf(o object, field string) []any {
	list, _ := o[field].([]any)
	return list
}

// numberOf is nil where the field is null or missing; ok is false where it is something else.
func numberOf(v any) (n *float64, ok bool) {
	switch v := v.(type) {
	case nil:
		return nil, true
	case float64:
		return &v, true
	case int64:
		f := float64(v)
		return &f, true
	case uint64:
		f := float64(v)
		return &f, true
	case bool:
		f := 0.0
		if v {
			f = 1
		}
		return &f, true
	}
	return nil, false
}
