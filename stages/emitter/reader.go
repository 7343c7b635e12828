package emitter

import (
	"encoding/binary"
	"errors"
	"math"
)

// reader takes what a state is made of off its front; the first error stays, and all is 0 from then on.
type reader struct {
	rest []byte
	err  error
}

var errShort = errors.New("cut short or out of range")

func (r *reader) uint() int64 {
	v, n := binary.Uvarint(r.rest)
	if r.err != nil || n <= 0 || v > 1<<62 {
		r.err, r.rest = errShort, nil
		return 0
	}
	r.rest = r.rest[n:]
	return int64(v)
}

// count reads a number that is at most most.
func (r *reader) count(most int) int {
	v := r.uint()
	if v > int64(most) {
		r.err, r.rest = errShort, nil
		return 0
	}
	return int(v)
}

func (r *reader) bytes(n int) []byte {
	if r.err != nil || n > len(r.rest) {
		r.err, r.rest = errShort, nil
		return nil
	}
	b := r.rest[:n]
	r.rest = r.rest[n:]
	return b
}

// text reads what appendText wrote.
func (r *reader) text() string { return string(r.bytes(r.count(len(r.rest)))) }

// float reads eight bytes: a finite number.
func (r *reader) float() float64 {
	b := r.bytes(8)
	if r.err != nil {
		return 0
	}
	v := math.Float64frombits(binary.LittleEndian.Uint64(b))
	if math.IsNaN(v) || math.IsInf(v, 0) {
		r.err, r.rest = errShort, nil
		return 0
	}
	return v
}

func appendText[T string | []byte](b []byte, text T) []byte {
	return append(binary.AppendUvarint(b, uint64(len(text))), text...)
}
