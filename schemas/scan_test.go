package schemas

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// The scans find what a look at every element finds, wherever it is, and take nothing else for it.
func TestScans(t *testing.T) {
	rng := rand.New(rand.NewPCG(41, 43))
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for range 5000 {
		mask, ids, floats, zeros := make([]byte, rng.IntN(40)), make([]int32, rng.IntN(20)), make([]float32, rng.IntN(20)), make([]float32, rng.IntN(20))
		for i := range mask {
			mask[i] = byte(rng.IntN(2))
		}
		for i := range ids {
			ids[i] = pick(rng, 0, math.MaxInt32, rng.Int32())
		}
		for i := range floats {
			floats[i] = pick(rng, 0, math.MaxFloat32, -math.MaxFloat32, math.SmallestNonzeroFloat32, -rng.Float32())
		}
		for i := range zeros {
			zeros[i] = pick(rng, 0, math.Float32frombits(1<<31))
		}
		if rng.IntN(2) == 0 { // none is as it should be, here and there
			spoil(rng, mask, 2, 128, 255)
			spoil(rng, ids, -1, math.MinInt32)
			spoil(rng, floats, nan, inf, -inf, -nan)
			spoil(rng, zeros, 1, math.SmallestNonzeroFloat32, nan)
		}
		if got, want := Uint8s(mask).NotBit(), slices.IndexFunc(mask, func(v byte) bool { return v > 1 }); got != want {
			t.Fatalf("%v: element %d is no bit, got %d", mask, want, got)
		}
		if got, want := PackInt32s(ids).Negative(), slices.IndexFunc(ids, func(v int32) bool { return v < 0 }); got != want {
			t.Fatalf("%v: element %d is negative, got %d", ids, want, got)
		}
		if got, want := PackFloat32s(floats).NotFinite(), slices.IndexFunc(floats, func(v float32) bool { return math.IsNaN(float64(v)) || math.IsInf(float64(v), 0) }); got != want {
			t.Fatalf("%v: element %d is not finite, got %d", floats, want, got)
		}
		if got, want := PackFloat32s(zeros).Zero(), !slices.ContainsFunc(zeros, func(v float32) bool { return v != 0 }); got != want {
			t.Fatalf("%v: all zero: %t, got %t", zeros, want, got)
		}
	}
}

func spoil[T any](rng *rand.Rand, values []T, by ...T) {
	for range min(len(values), 1+rng.IntN(2)) {
		values[rng.IntN(len(values))] = pick(rng, by...)
	}
}
