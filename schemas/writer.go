package schemas

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// maxBlock is the most items of an array or map that are written as one block. Readers that reserve room for as many as a
// block claims to have refuse larger ones.
const maxBlock = 1 << 14

// A writer puts a record into the Avro binary encoding. The generated methods walk the record twice: first, while there is
// no memory, to learn its size, and then to write it into memory of that size.
type writer struct {
	b    []byte // all of it; nil while the size is counted
	at   int
	keys []string // of the map that is being written
	err  error    // the first value that does not fit its type
}

func (w *writer) long(v int64) {
	u := uint64(v<<1) ^ uint64(v>>63)
	if w.b == nil {
		w.at += (bits.Len64(u|1) + 6) / 7
		return
	}
	w.at += binary.PutUvarint(w.b[w.at:], u)
}

func (w *writer) int(v int, field string) {
	if int(int32(v)) != v && w.err == nil {
		w.err = fmt.Errorf("%s: %d is no int of 32 bits", field, v)
	}
	w.long(int64(v))
}

func (w *writer) double(v float64) {
	if w.b != nil {
		binary.LittleEndian.PutUint64(w.b[w.at:], math.Float64bits(v))
	}
	w.at += 8
}

func (w *writer) boolean(v bool) {
	if w.b != nil {
		w.b[w.at] = 0
		if v {
			w.b[w.at] = 1
		}
	}
	w.at++
}

func (w *writer) bytes(v []byte) {
	w.long(int64(len(v)))
	if w.b != nil {
		copy(w.b[w.at:], v)
	}
	w.at += len(v)
}

func (w *writer) string(v string) {
	w.long(int64(len(v)))
	if w.b != nil {
		copy(w.b[w.at:], v)
	}
	w.at += len(v)
}

// option begins a value that may be null.
func (w *writer) option(there bool) bool {
	branch := int64(0) // null
	if there {
		branch = 1
	}
	w.long(branch)
	return there
}

// block begins a block of an array or map of n items where item i is its first.
func (w *writer) block(i, n int) {
	if i%maxBlock == 0 {
		w.long(int64(min(n-i, maxBlock)))
	}
}

// end ends an array or map.
func (w *writer) end() { w.long(0) }

// sorted is the keys of a map in order: equal records are equal bytes (I6). They hold until the next call.
func sorted[T any](w *writer, m map[string]T) []string {
	if w.keys = w.keys[:0]; cap(w.keys) < len(m) {
		w.keys = make([]string, 0, len(m))
	}
	for k := range m {
		w.keys = append(w.keys, k)
	}
	slices.Sort(w.keys)
	return w.keys
}
