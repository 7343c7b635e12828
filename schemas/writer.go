package schemas

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"sync"
	"unsafe"
)

// maxBlock is the most items of an array or map that are written as one block. Readers that reserve room for as many as a
// block claims to have refuse larger ones.
const maxBlock = 1 << 14

// A writer puts a record into the Avro binary encoding. It collects what is small and notes where the large values are, so
// that these are copied once, into a message of just their size that was never cleared: bytes.Join alone makes such memory.
type writer struct {
	small []byte   // what was written, without the large values
	large []piece  // those, in their order
	parts [][]byte // of the message
	keys  []string // of the map that is being written
	err   error    // the first value that does not fit its type
}

// A piece is a large value, which stands in front of byte at of the small ones.
type piece struct {
	at   int
	data []byte
}

// large is from how many bytes on a value is one: to copy less twice costs no more than to remember where it is.
const large = 512

// writers that are idle keep their memory.
var writers = sync.Pool{New: func() any { return &writer{small: make([]byte, 0, 4<<10)} }}

// message is head and what was written.
func (w *writer) message(head []byte) []byte {
	parts, from := append(w.parts[:0], head), 0
	for _, p := range w.large {
		parts, from = append(parts, w.small[from:p.at], p.data), p.at
	}
	w.parts = append(parts, w.small[from:])
	return bytes.Join(w.parts, nil)
}

// maxKept bounds the memory that a writer keeps.
const maxKept = 1 << 20

// release gives the writer back. It keeps nothing of the record.
func (w *writer) release() {
	clear(w.large)
	clear(w.parts)
	clear(w.keys[:cap(w.keys)])
	if cap(w.small) <= maxKept {
		*w = writer{small: w.small[:0], large: w.large[:0], parts: w.parts[:0], keys: w.keys[:0]}
		writers.Put(w)
	}
}

func (w *writer) long(v int64) { w.small = binary.AppendVarint(w.small, v) }

func (w *writer) int(v int, field string) {
	if int(int32(v)) != v && w.err == nil {
		w.err = fmt.Errorf("%s: %d is no int of 32 bits", field, v)
	}
	w.long(int64(v))
}

func (w *writer) double(v float64) {
	w.small = binary.LittleEndian.AppendUint64(w.small, math.Float64bits(v))
}

func (w *writer) boolean(v bool) {
	bit := byte(0)
	if v {
		bit = 1
	}
	w.small = append(w.small, bit)
}

func (w *writer) bytes(v []byte) {
	w.long(int64(len(v)))
	if len(v) < large {
		w.small = append(w.small, v...)
		return
	}
	w.large = append(w.large, piece{len(w.small), v})
}

func (w *writer) string(v string) { w.bytes(unsafe.Slice(unsafe.StringData(v), len(v))) }

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
