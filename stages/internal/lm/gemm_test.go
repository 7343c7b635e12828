package lm

import (
	"math"
	"testing"

	"gonum.org/v1/gonum/blas"
)

// TestGonumsBits: products have the bits that gonum gives them, so that weights do not depend on what the processor can; also with
// zeros in A, which gonum skips, and where they are added to what is there.
func TestGonumsBits(t *testing.T) {
	rng := NewRNG(5)
	random := func(n int, zeros float64) []float32 {
		s := make([]float32, n)
		for i := range s {
			if rng.Float64() >= zeros {
				s[i] = float32(rng.NormFloat64())
			}
		}
		return s
	}
	for _, n := range []int{1, 2, 7, 8, 9, 15, 16, 17, 31, 32, 47, 130} {
		for _, k := range []int{1, 2, 16, 65, 300} { // 130 × 300 is copied in two parts
			for _, m := range []int{1, 2, 3, 4, 5, 8, 67} {
				const more = 3 // of a row's distance than its length
				for _, beta := range []float32{0, 1} {
					a, b, c := random(m*(k+more), 0.3), random(k*(n+more), 0), random(m*(n+more), 0)
					want := append([]float32{}, c...)
					plain(blas.NoTrans, m, n, k, a, k+more, b, n+more, beta, want, n+more)
					gemm(m, n, k, a, k+more, b, n+more, beta, c, n+more)
					if !sameBits(c, want) {
						t.Fatalf("%d×%d×%d, beta %g: other bits than gonum's", m, n, k, beta)
					}
				}
				a, b, c := random(k*(m+more), 0.3), random(k*(n+more), 0), random(m*(n+more), 0)
				want := append([]float32{}, c...)
				plain(blas.Trans, m, n, k, a, m+more, b, n+more, 1, want, n+more)
				gemmTA(m, n, k, a, m+more, b, n+more, c, n+more)
				if !sameBits(c, want) {
					t.Fatalf("%d×%d×%d transposed: other bits than gonum's", m, n, k)
				}
			}
		}
	}
	c := []float32{1, 2}
	if gemm(1, 2, 0, nil, 1, nil, 2, 0, c, 2); c[0] != 0 || c[1] != 0 {
		t.Errorf("a sum over nothing is %g", c)
	}
}

// TestGemmBounds: what does not fit panics, as it would in Go: the tiles look at no bounds.
func TestGemmBounds(t *testing.T) {
	const m, n, k = 4, 16, 3
	for name, short := range map[string][3]int{"a": {1, 0, 0}, "b": {0, 1, 0}, "c": {0, 0, 1}} {
		for _, transposed := range []bool{false, true} {
			func() {
				defer func() {
					if recover() == nil {
						t.Errorf("%s is too short, and nothing panics", name)
					}
				}()
				a, b, c := make([]float32, m*k-short[0]), make([]float32, k*n-short[1]), make([]float32, m*n-short[2])
				if transposed {
					gemmTA(m, n, k, a, m, b, n, c, n)
				} else {
					gemm(m, n, k, a, k, b, n, 0, c, n)
				}
			}()
		}
	}
}

// TestExps: in blocks or one by one, the bits are the same.
func TestExps(t *testing.T) {
	x := []float32{0, float32(math.Copysign(0, -1)), -87, -87.00001, 88, 88.00001, -200, 200, float32(math.Inf(1)), float32(math.Inf(-1)), 1e-40, float32(math.NaN())}
	for v := float32(-90); v < 90; v += 0.0137 {
		x = append(x, v)
	}
	for from := range 9 {
		got := append([]float32{}, x[from:]...)
		exps(got)
		for i, v := range x[from:] {
			if want := exp32(v); math.Float32bits(got[i]) != math.Float32bits(want) && (got[i] == got[i] || want == want) {
				t.Fatalf("exp(%g) = %g in a block, %g alone", v, got[i], want)
			}
		}
	}
}
