package schemas

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"unsafe"
)

// A reader takes a record apart that was written in some version of its schema, which the generated methods follow. What
// it reads is untrusted: after the first thing that is wrong everything reads as zero, and no room is made for more than
// the bytes that are left can hold.
type reader struct {
	shape *shape
	b     []byte
	at    int
	err   error
}

var (
	errShort = errors.New("it ends in the middle of a value")
	errLong  = errors.New("an integer of more than 64 bits")
)

// fail ends the reading.
func (d *reader) fail(err error) {
	if d.err == nil {
		d.err = fmt.Errorf("byte %d: %w", d.at, err)
	}
	d.at = len(d.b)
}

func (d *reader) long() int64 {
	if at := d.at; uint(at) < uint(len(d.b)) {
		if u := int64(d.b[at]); u < 0x80 { // as most are
			d.at = at + 1
			return u>>1 ^ -(u & 1)
		}
	}
	return d.longer()
}

// longer is a long of several bytes.
func (d *reader) longer() int64 {
	if b := d.b[d.at:]; len(b) > 1 && b[1] < 0x80 { // two, as the lengths of most tensors take
		d.at += 2
		u := int64(b[0]&0x7f) | int64(b[1])<<7
		return u>>1 ^ -(u & 1)
	}
	v, n := binary.Varint(d.b[d.at:])
	if n <= 0 {
		if n == 0 {
			d.fail(errShort)
		} else {
			d.fail(errLong)
		}
		return 0
	}
	d.at += n
	return v
}

func (d *reader) int() int {
	v := d.long()
	if v != int64(int32(v)) {
		d.fail(fmt.Errorf("%d is no int of 32 bits", v))
		return 0
	}
	return int(v)
}

func (d *reader) double() float64 {
	b := d.take(8)
	if b == nil {
		return 0
	}
	return math.Float64frombits(binary.LittleEndian.Uint64(b))
}

func (d *reader) boolean() bool {
	b := d.take(1)
	if b == nil {
		return false
	}
	if b[0] > 1 {
		d.fail(fmt.Errorf("a boolean of %d", b[0]))
	}
	return b[0] == 1
}

// empty passes over a value that has nothing in it, if that is next: a text or bytes of no length, a list or map without
// items, null.
func (d *reader) empty() bool {
	if d.at < len(d.b) && d.b[d.at] == 0 {
		d.at++
		return true
	}
	return false
}

// take is the next n bytes, which share the message's memory: appending to them does not overwrite what follows.
func (d *reader) take(n int64) []byte {
	if uint64(n) > uint64(len(d.b)-d.at) {
		if n < 0 {
			d.fail(fmt.Errorf("a length of %d", n))
		} else {
			d.fail(errShort)
		}
		return nil
	}
	from := d.at
	d.at += int(n)
	return d.b[from:d.at:d.at]
}

func (d *reader) bytes() []byte {
	b := d.take(d.long())
	if len(b) == 0 {
		return nil
	}
	return b
}

func (d *reader) string() string { return copied(d.take(d.long())) }

// longText is from how many bytes on a text shares the message's memory. A shorter one may be a name that outlives its
// record, and would keep all of the message.
const longText = 128

// text is a string that stands beside tensors. A long one shares the message's memory, as they do.
func (d *reader) text() string {
	b := d.take(d.long())
	if len(b) < longText {
		return copied(b)
	}
	return unsafe.String(&b[0], len(b))
}

// copied is a text with memory of its own; the words that most texts are take none.
func copied(b []byte) string {
	switch string(b) {
	case "":
		return ""
	case "user":
		return "user"
	case "assistant":
		return "assistant"
	case "tool":
		return "tool"
	case "system":
		return "system"
	case SplitTrain:
		return SplitTrain
	case FatePacked:
		return FatePacked
	case FateFiltered:
		return FateFiltered
	}
	return string(b)
}

// block is the number of items in the next block of an array or map; 0 at its end.
func (d *reader) block() int64 {
	n := d.long()
	if n >= 0 {
		return n
	}
	d.long() // a negative number is followed by the block's size
	if n == math.MinInt64 {
		d.fail(errLong)
		return 0
	}
	return -n
}

// room is for how many items of a block memory is made before they are read, as they take at least so many bytes each. 0,
// where there is none for a single one, ends the reading.
func (d *reader) room(items int64, least int) int {
	n := int(min(items, maxBlock, int64((len(d.b)-d.at)/least)))
	if n == 0 {
		d.fail(errShort)
	}
	return n
}

func readList[T any](d *reader, least int, item func(*T, *reader)) (list []T) {
	for n := d.block(); n > 0; n = d.block() {
		for n > 0 && d.err == nil {
			part := make([]T, d.room(n, least))
			for i := range part {
				item(&part[i], d)
			}
			n -= int64(len(part))
			if list == nil {
				list = part
			} else {
				list = append(list, part...)
			}
		}
	}
	return list
}

func readMap[T any](d *reader, value func(*T, *reader)) (m map[string]T) {
	for n := d.block(); n > 0; n = d.block() {
		if m == nil {
			m = make(map[string]T, d.room(n, 2))
		}
		for ; n > 0 && d.err == nil; n-- {
			key, known := d.string(), len(m)
			var v T
			value(&v, d)
			if m[key] = v; len(m) == known {
				d.fail(fmt.Errorf("the key %q comes twice", key))
			}
		}
	}
	return m
}

func readOption[T any](d *reader, value func(*T, *reader)) *T {
	switch branch := d.long(); branch {
	case 0:
	case 1:
		v := new(T)
		value(v, d)
		return v
	default:
		d.fail(fmt.Errorf("branch %d of a union of two", branch))
	}
	return nil
}
