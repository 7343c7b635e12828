package schemas

import (
	"encoding/binary"
	"math"
	"slices"
)

// Every tensor that is decoded is looked through, so the scans below take 32 or 64 bytes at a time, which is over three times as
// fast as eight; only where those are not as they should be do they look for the element.

// NotBit is the first element that is neither 0 nor 1; -1 for none.
func (t Uint8s) NotBit() int {
	if or(t)&^0x01010101_01010101 == 0 {
		return -1
	}
	return slices.IndexFunc(t, func(v byte) bool { return v > 1 })
}

// Negative is the first element below zero; -1 for none.
func (t Int32s) Negative() int {
	if or(t)&0x80000000_80000000 != 0 {
		for i := range t.Len() {
			if t.At(i) < 0 {
				return i
			}
		}
	}
	return -1
}

// Zero reports whether every element is zero.
func (t Float32s) Zero() bool { return or(t)&0x7fffffff_7fffffff == 0 }

// NotFinite is the first element that is infinite or no number; -1 for none.
func (t Float32s) NotFinite() int {
	// Such numbers have an exponent of ones. One more carries it over into the place of the sign, and no other exponent.
	const exponent, one, sign = 0x7f800000_7f800000, 0x00800000_00800000, 0x80000000_80000000
	var seen, seen2, seen3, seen4 uint64 // apart, so that none waits for another
	b := []byte(t)
	for ; len(b) >= 64; b = b[64:] {
		w := (*[64]byte)(b)
		seen |= word(w[0:])&exponent + one
		seen2 |= word(w[8:])&exponent + one
		seen3 |= word(w[16:])&exponent + one
		seen4 |= word(w[24:])&exponent + one
		seen |= word(w[32:])&exponent + one
		seen2 |= word(w[40:])&exponent + one
		seen3 |= word(w[48:])&exponent + one
		seen4 |= word(w[56:])&exponent + one
	}
	seen |= seen2 | seen3 | seen4
	for ; len(b) >= 4; b = b[4:] {
		seen |= uint64(binary.LittleEndian.Uint32(b))&exponent + one
	}
	if seen&sign != 0 {
		for i := range t.Len() {
			if v := float64(t.At(i)); math.IsNaN(v) || math.IsInf(v, 0) {
				return i
			}
		}
	}
	return -1
}

// or joins the bits of all bytes, eight by eight.
func or(b []byte) (bits uint64) {
	for ; len(b) >= 32; b = b[32:] {
		w := (*[32]byte)(b)
		bits |= word(w[0:]) | word(w[8:]) | word(w[16:]) | word(w[24:])
	}
	for i, v := range b {
		bits |= uint64(v) << (i % 8 * 8)
	}
	return bits
}

func word(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }
