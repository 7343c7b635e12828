package lm

import "math"

// axpy is y += x.
func axpy(x, y []float32) {
	if len(x) > 0 {
		impl.Saxpy(len(x), 1, x, 1, y, 1)
	}
}

// transpose writes src [rows × cols] to dst as [cols × rows].
func transpose(dst, src []float32, rows, cols int) {
	transposeStrided(dst, rows, src, cols, rows, cols)
}

// transposeStrided writes src [rows × cols] with stride lds to dst as [cols × rows] with stride ldd.
func transposeStrided(dst []float32, ldd int, src []float32, lds, rows, cols int) {
	const block = 16 // both sides of a block lie in few cache lines
	for i0 := 0; i0 < rows; i0 += block {
		i1 := min(i0+block, rows)
		for j := range cols {
			d := dst[j*ldd+i0 : j*ldd+i1]
			at := i0*lds + j
			for i := range d {
				d[i] = src[at]
				at += lds
			}
		}
	}
}

// rmsNorm writes x·w/rms(x) of every row to y, and 1/rms(x) to inv. x, y are [rows × len(w)].
func rmsNorm(y, inv, x, w []float32, eps float64) {
	n := len(w)
	for r := range inv {
		xr, yr := x[r*n:(r+1)*n], y[r*n:(r+1)*n]
		var sum float32
		for _, v := range xr {
			sum += v * v
		}
		s := float32(1 / math.Sqrt(float64(sum)/float64(n)+eps))
		inv[r] = s
		for i, v := range xr {
			yr[i] = v * s * w[i]
		}
	}
}

// rmsNormBackward adds the gradient of rmsNorm to dx and dw, given dy.
func rmsNormBackward(dx, dw, dy, inv, x, w []float32) {
	n := len(w)
	for r, s := range inv {
		xr, dyr, dxr := x[r*n:(r+1)*n], dy[r*n:(r+1)*n], dx[r*n:(r+1)*n]
		var dot float32
		for i, v := range xr {
			g := dyr[i] * v
			dw[i] += g * s
			dot += g * w[i]
		}
		c := dot * s * s * s / float32(n)
		for i, v := range xr {
			dxr[i] += dyr[i]*w[i]*s - v*c
		}
	}
}

// swiGLU writes gate·sigmoid(gate)·up to act and the sigmoids to sig. gateUp is [rows × 2f], act and sig [rows × f].
func swiGLU(act, sig, gateUp []float32, f int) {
	for r := 0; r*f < len(act); r++ {
		g, u := gateUp[2*r*f:(2*r+1)*f], gateUp[(2*r+1)*f:(2*r+2)*f]
		a, s := act[r*f:(r+1)*f], sig[r*f:(r+1)*f]
		for i, v := range g {
			s[i] = -v
		}
		exps(s)
		for i, v := range g {
			s[i] = 1 / (1 + s[i])
			a[i] = v * s[i] * u[i]
		}
	}
}

// swiGLUBackward overwrites gateUp with its gradient, given that of act.
func swiGLUBackward(gateUp, sig, dact []float32, f int) {
	for r := 0; r*f < len(dact); r++ {
		g, u := gateUp[2*r*f:(2*r+1)*f], gateUp[(2*r+1)*f:(2*r+2)*f]
		d, s := dact[r*f:(r+1)*f], sig[r*f:(r+1)*f]
		for i, v := range g {
			silu := v * s[i]
			g[i], u[i] = d[i]*u[i]*(s[i]+silu*(1-s[i])), d[i]*silu
		}
	}
}

// rope turns the heads in x, [rows × heads·headDim] with stride ldx, to their positions: the first half of a head is
// paired with its second half, as in Hugging Face's Llama. back turns the other way (the gradient).
func (m *Model) rope(x []float32, ldx, heads int, pos []int32, back bool) {
	d := m.cfg.headDim()
	half := d / 2
	for r, p := range pos {
		cos, sin := m.cos[int(p)*half:(int(p)+1)*half], m.sin[int(p)*half:(int(p)+1)*half]
		for h := range heads {
			head := x[r*ldx+h*d : r*ldx+(h+1)*d]
			a, b := head[:half], head[half:]
			for i, c := range cos {
				s := sin[i]
				if back {
					s = -s
				}
				a[i], b[i] = a[i]*c-b[i]*s, b[i]*c+a[i]*s
			}
		}
	}
}
