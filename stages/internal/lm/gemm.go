package lm

import (
	"gonum.org/v1/gonum/blas"
	"gonum.org/v1/gonum/blas/gonum"
)

// Matrix products. Each element of C is summed over k in ascending order, every product and every sum rounded on its own, so
// that neither the other rows nor the tiles change its bits, nor which of the two ways below computes it: gonum, which reads and
// writes C once for every k, or tiles of C that stay in registers, where there are vectors of eight (gemm_amd64.s). That is
// so of finite numbers: gonum passes over zeros of A, whose product with an infinity is not a number.

var impl gonum.Implementation

// gemm is C = A·B + beta·C with A [m × k], B [k × n], C [m × n], and beta 0 or 1.
func gemm(m, n, k int, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	switch {
	case m == 0 || n == 0:
	case vectors && k > 0:
		tiles(m, n, k, a, lda, 1, b, ldb, beta == 1, c, ldc)
	default:
		plain(blas.NoTrans, m, n, k, a, lda, b, ldb, beta, c, ldc)
	}
}

// gemmTA is C += Aᵀ·B with A [k × m], B [k × n], C [m × n].
func gemmTA(m, n, k int, a []float32, lda int, b []float32, ldb int, c []float32, ldc int) {
	switch {
	case m == 0 || n == 0:
	case vectors && k > 0:
		tiles(m, n, k, a, 1, lda, b, ldb, true, c, ldc)
	default:
		plain(blas.Trans, m, n, k, a, lda, b, ldb, 1, c, ldc)
	}
}

// plain is a product by gonum, in parts small enough that it does not start goroutines of its own (it does from four blocks of
// 64×64): the callers spread the work.
func plain(ta blas.Transpose, m, n, k int, a []float32, lda int, b []float32, ldb int, beta float32, c []float32, ldc int) {
	const rows, cols = 64, 128
	step := lda
	if ta == blas.Trans {
		step = 1
	}
	for j := 0; j < n; j += cols {
		for i := 0; i < m; i += rows {
			impl.Sgemm(ta, blas.NoTrans, min(rows, m-i), min(cols, n-j), k, 1, a[i*step:], lda, b[j:], ldb, beta, c[i*ldc+j:], ldc)
		}
	}
}

// lanes is the columns of a tile.
const lanes = 16

// masks[w] has the first w lanes.
var masks = func() (m [lanes][lanes]int32) {
	for w := range m {
		for i := range w {
			m[w][i] = -1
		}
	}
	return m
}()

// tiles is C = A·B, or with add C += A·B, where element (i, l) of A is a[i·row + l·step].
func tiles(m, n, k int, a []float32, row, step int, b []float32, ldb int, add bool, c []float32, ldc int) {
	_, _, _ = a[(m-1)*row+(k-1)*step], b[(k-1)*ldb+n-1], c[(m-1)*ldc+n-1] // the tiles look at no bounds
	if m >= 8 && k*n > 1<<15 {
		packed(m, n, k, a, row, step, b, ldb, add, c, ldc)
		return
	}
	for j := 0; j < n; j += lanes {
		strip(m, k, a, row, step, b[j:], ldb, add, c[j:], ldc, n-j)
	}
}

// packed is tiles for a B that does not fit into the cache: what a strip of C needs of it is copied into one place first, and
// serves all rows.
func packed(m, n, k int, a []float32, row, step int, b []float32, ldb int, add bool, c []float32, ldc int) {
	const depth = 256
	var panel [depth * lanes]float32
	for l := 0; l < k; l += depth {
		d := min(depth, k-l)
		for j := 0; j < n; j += lanes {
			w := min(lanes, n-j)
			for i := range d {
				copy(panel[i*lanes:i*lanes+w], b[(l+i)*ldb+j:])
			}
			strip(m, d, a[l*step:], row, step, panel[:], lanes, add || l > 0, c[j:], ldc, w)
		}
	}
}

// strip is tiles for the first columns of C, at most as many as there are lanes.
func strip(m, k int, a []float32, row, step int, b []float32, ldb int, add bool, c []float32, ldc, cols int) {
	const size = 4 // bytes of a float32
	var mask *[lanes]int32
	if cols < lanes {
		mask = &masks[cols]
	}
	i := 0
	for ; i+4 <= m; i += 4 {
		tile4(k, &a[i*row], size*row, size*step, &b[0], size*ldb, &c[i*ldc], size*ldc, mask, add)
	}
	for ; i < m; i++ {
		tile1(k, &a[i*row], size*step, &b[0], size*ldb, &c[i*ldc], mask, add)
	}
}
