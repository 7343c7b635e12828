package schemas

import (
	"encoding/binary"
	"math"
)

// Int32s is a tensor of int32, little-endian and packed. Its length in bytes must be a multiple of four.
type Int32s []byte

// Float32s is a tensor of float32, little-endian and packed. Its length in bytes must be a multiple of four.
type Float32s []byte

// Uint8s is a tensor of one byte per element.
type Uint8s []byte

// Blob is a file, such as an image; like a tensor it may be kept in the blob store.
type Blob []byte

// PackInt32s packs v.
func PackInt32s(v []int32) Int32s {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	return b
}

// PackFloat32s packs v.
func PackFloat32s(v []float32) Float32s {
	b := make([]byte, 0, 4*len(v))
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
	}
	return b
}

// Len is the number of elements.
func (t Int32s) Len() int { return len(t) / 4 }

// Len is the number of elements.
func (t Float32s) Len() int { return len(t) / 4 }

// Len is the number of elements.
func (t Uint8s) Len() int { return len(t) }

// At is element i.
func (t Int32s) At(i int) int32 { return int32(binary.LittleEndian.Uint32(t[4*i:])) }

// At is element i.
func (t Float32s) At(i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(t[4*i:]))
}

// Values unpacks the tensor.
func (t Int32s) Values() []int32 {
	v := make([]int32, t.Len())
	for i := range v {
		v[i] = t.At(i)
	}
	return v
}

// Values unpacks the tensor.
func (t Float32s) Values() []float32 {
	v := make([]float32, t.Len())
	for i := range v {
		v[i] = t.At(i)
	}
	return v
}

// Slice is the elements from i to j, sharing the memory.
func (t Int32s) Slice(i, j int) Int32s { return t[4*i : 4*j] }

// Slice is the elements from i to j, sharing the memory.
func (t Float32s) Slice(i, j int) Float32s { return t[4*i : 4*j] }
