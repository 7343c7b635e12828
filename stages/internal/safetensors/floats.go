package safetensors

import (
	"encoding/binary"
	"fmt"
	"math"
)

// Floats decodes data of a type for real numbers (F32, BF16 or F16); ok is false for other types.
func Floats(dtype string, data []byte) (values []float32, ok bool) {
	switch dtype {
	case "F32":
		values = make([]float32, len(data)/4)
		for i := range values {
			values[i] = math.Float32frombits(binary.LittleEndian.Uint32(data[4*i:]))
		}
	case "BF16": // the upper half of a float32
		values = make([]float32, len(data)/2)
		for i := range values {
			values[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(data[2*i:])) << 16)
		}
	case "F16":
		values = make([]float32, len(data)/2)
		for i := range values {
			values[i] = fromHalf(binary.LittleEndian.Uint16(data[2*i:]))
		}
	default:
		return nil, false
	}
	return values, true
}

// PutFloats encodes values as Floats reads them, each as the nearest number of the type, ties to even. data is as long as
// they take.
func PutFloats(dtype string, data []byte, values []float32) error {
	switch dtype {
	case "F32":
		for i, v := range values {
			binary.LittleEndian.PutUint32(data[4*i:], math.Float32bits(v))
		}
	case "BF16":
		for i, v := range values {
			binary.LittleEndian.PutUint16(data[2*i:], toBrain(v))
		}
	case "F16":
		for i, v := range values {
			binary.LittleEndian.PutUint16(data[2*i:], toHalf(v))
		}
	default:
		return fmt.Errorf("numbers cannot be stored as %q: F32, BF16 and F16 are supported", dtype)
	}
	return nil
}

func toBrain(v float32) uint16 {
	b := math.Float32bits(v)
	if v != v {
		return uint16(b>>16) | 0x40 // stays no number
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// fromHalf widens an IEEE 754 half: 5 bits of exponent, 10 of fraction.
func fromHalf(h uint16) float32 {
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch exp {
	case 0: // zero and subnormal: frac × 2^-24
		v := float32(frac) / (1 << 24)
		return math.Float32frombits(sign | math.Float32bits(v))
	case 0x1f:
		return math.Float32frombits(sign | 0xff<<23 | frac<<13)
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}

func toHalf(v float32) uint16 {
	b := math.Float32bits(v)
	sign, a := uint16(b>>16&0x8000), math.Float32frombits(b&^(1<<31))
	switch {
	case v != v:
		return sign | 0x7e00
	case a >= 65520: // halfway beyond the largest
		return sign | 0x7c00
	case a < 1.0/(1<<14): // subnormal: a multiple of 2^-24
		return sign | uint16(math.RoundToEven(float64(a)*(1<<24)))
	}
	b = math.Float32bits(a)
	b += 0xfff + b>>13&1
	return sign | uint16(b>>13-112<<10)
}
