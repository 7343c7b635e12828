package schemas

import (
	"bytes"
	"encoding/binary"
	"math"
	"reflect"
	"strings"
	"testing"
)

// What no writer writes is refused, with the byte at which it stands.
func TestReader_Refuses(t *testing.T) {
	varint := func(values ...int64) (b []byte) {
		for _, v := range values {
			b = binary.AppendVarint(b, v)
		}
		return b
	}
	key := append(varint(1), 'k')
	for _, c := range []struct {
		name string
		body []byte
		read func(*reader)
		want string
	}{
		{"a number without an end", bytes.Repeat([]byte{0x80}, 3), func(d *reader) { d.long() }, "byte 0: it ends"},
		{"a number of 70 bits", append(bytes.Repeat([]byte{0xff}, 9), 0x7f), func(d *reader) { d.long() }, "64 bits"},
		{"an int of 33 bits", varint(math.MaxInt32 + 1), func(d *reader) { d.int() }, "2147483648 is no int"},
		{"half a double", make([]byte, 7), func(d *reader) { d.double() }, "it ends"},
		{"neither true nor false", []byte{2}, func(d *reader) { d.boolean() }, "a boolean of 2"},
		{"a negative length", varint(-3), func(d *reader) { d.bytes() }, "byte 1: a length of -3"},
		{"a length past the end", varint(math.MaxInt64, 0), func(d *reader) { _ = d.string() }, "it ends"},
		{"a third branch", varint(2), func(d *reader) { readOption(d, readLong) }, "branch 2"},
		{"a negative branch", varint(-1), func(d *reader) { readOption(d, readLong) }, "branch -1"},
		{"more items than bytes", varint(9, 1, 1), func(d *reader) { readList(d, 1, readLong) }, "it ends"},
		{"a list without an end", varint(1, 1), func(d *reader) { readList(d, 1, readLong) }, "it ends"},
		{"a block of the least number", varint(math.MinInt64, 0), func(d *reader) { readList(d, 1, readLong) }, "64 bits"},
		{"a key that comes twice", append(append(varint(2), append(key, 0)...), append(key, 0, 0)...),
			func(d *reader) { readMap(d, readLong) }, `"k" comes twice`},
		{"a key that comes twice, in two blocks", append(append(varint(1), append(key, 0)...), append(varint(1), append(key, 0, 0)...)...),
			func(d *reader) { readMap(d, readLong) }, `"k" comes twice`},
	} {
		d := reader{b: c.body}
		if c.read(&d); d.err == nil || !strings.Contains(d.err.Error(), c.want) {
			t.Errorf("%s: %v, want an error with %q", c.name, d.err, c.want)
		}
	}
}

// Lists come in blocks, whose size in bytes may stand before them.
func TestReader_Blocks(t *testing.T) {
	var b []byte
	for _, v := range []int64{2, 7, 8, -2, 2, 9, 10, 1, 11, 0} {
		b = binary.AppendVarint(b, v)
	}
	d := reader{b: b}
	if got := readList(&d, 1, readLong); d.err != nil || d.at != len(b) || !reflect.DeepEqual(got, []int64{7, 8, 9, 10, 11}) {
		t.Errorf("read %v to byte %d of %d: %v", got, d.at, len(b), d.err)
	}
}

func readLong(v *int64, d *reader) { *v = d.long() }
