package lm

import "math"

// attendBlock is how many queries share one product with the keys: enough to fill it, few enough that little of it lies
// above the diagonal.
const attendBlock = 32

// keyValues are the keys and values of one sequence in one layer, from its position 0 on.
type keyValues struct {
	kT  []float32 // keys, transposed: [kvDim × positions] with stride ldk
	ldk int
	v   []float32 // values: [positions × kvDim] with stride ldv
	ldv int
}

// attend writes the attention of the queries q at the ascending positions pos, [len(pos) × qDim], to out. A query sees
// the positions up to its own. scores is scratch, returned because it grows.
func (m *Model) attend(out, q []float32, pos []int32, kv keyValues, scores []float32) []float32 {
	ld, d := m.cfg.qDim(), m.cfg.headDim()
	group := m.cfg.NumAttentionHeads / m.cfg.NumKeyValueHeads
	for i := 0; i < len(pos); i += attendBlock {
		block := pos[i:min(i+attendBlock, len(pos))]
		n := int(block[len(block)-1]) + 1
		scores = grow(scores, len(block)*n)
		for head := range m.cfg.NumAttentionHeads {
			at, kvAt := i*ld+head*d, head/group*d
			m.attentionWeights(scores, q[at:], block, n, kv.kT[kvAt*kv.ldk:], kv.ldk)
			gemm(len(block), d, n, scores, n, kv.v[kvAt:], kv.ldv, 0, out[at:], ld)
		}
	}
	return scores
}

// attentionWeights writes the softmax of the scaled scores of one head to p, [len(pos) × n], zero above the diagonal.
func (m *Model) attentionWeights(p, q []float32, pos []int32, n int, kT []float32, ldk int) {
	d := m.cfg.headDim()
	gemm(len(pos), n, d, q, m.cfg.qDim(), kT, ldk, 0, p, n)
	scale := float32(1 / math.Sqrt(float64(d)))
	for r, last := range pos {
		row := p[r*n : (r+1)*n]
		seen := row[:last+1]
		top := seen[0]
		for _, s := range seen {
			if s > top {
				top = s
			}
		}
		for j, s := range seen {
			seen[j] = (s - top) * scale
		}
		exps(seen)
		var sum float32
		for _, e := range seen {
			sum += e
		}
		inv := 1 / sum
		for j := range seen {
			seen[j] *= inv
		}
		clear(row[last+1:])
	}
}

// attendBackward writes the gradient of the queries to dq and adds those of keys and values to dkv, [positions ×
// 2·kvDim], given dout. k and v are the keys and values as rows of stride 2·kvDim, vT the values transposed as kT is.
func (m *Model) attendBackward(dq, dkv, dout, q []float32, pos []int32, kv keyValues, k, vT []float32, p, ds []float32) (pScratch, dsScratch []float32) {
	ld, d, w := m.cfg.qDim(), m.cfg.headDim(), m.cfg.KVDim()
	group := m.cfg.NumAttentionHeads / m.cfg.NumKeyValueHeads
	scale := float32(1 / math.Sqrt(float64(d)))
	for i := 0; i < len(pos); i += attendBlock {
		block := pos[i:min(i+attendBlock, len(pos))]
		b, n := len(block), int(block[len(block)-1])+1
		p, ds = grow(p, b*n), grow(ds, b*n)
		for head := range m.cfg.NumAttentionHeads {
			at, kvAt := i*ld+head*d, head/group*d
			m.attentionWeights(p, q[at:], block, n, kv.kT[kvAt*kv.ldk:], kv.ldk)
			gemmTA(n, d, b, p, n, dout[at:], ld, dkv[w+kvAt:], 2*w)
			gemm(b, n, d, dout[at:], ld, vT[kvAt*kv.ldk:], kv.ldk, 0, ds, n)
			for r, last := range block {
				pr, dr := p[r*n:r*n+int(last)+1], ds[r*n:(r+1)*n]
				var dot float32
				for j, v := range pr {
					dot += v * dr[j]
				}
				for j, v := range pr {
					dr[j] = v * (dr[j] - dot) * scale
				}
				clear(dr[last+1:])
			}
			gemm(b, d, n, ds, n, k[kvAt:], 2*w, 0, dq[at:], ld)
			gemmTA(n, d, b, ds, n, q[at:], ld, dkv[kvAt:], 2*w)
		}
	}
	return p, ds
}

// grow returns a slice of length n, s itself where it is long enough; the content is arbitrary.
func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n+n/4)[:n]
	}
	return s[:n]
}
