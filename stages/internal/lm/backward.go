package lm

// gradients is the scratch of a backward pass and the gradient it adds to.
type gradients struct {
	// flat holds the gradient of every weight at the weight's offset; a matrix for which transposed() holds lies there
	// transposed, as [in × out].
	flat []float32

	dx, dhidden, dact, dnorm, dattn, dq, dkv, dhead []float32
	vT, xT, p, ds, spare                            []float32
}

// transposed says that the gradient is kept as [in × out]: the longer the rows of a product, the faster it is.
func (l *linear) transposed() bool { return l.out > l.in }

// backward adds the gradient of the weights to g, given that of p's logits, dlogits [want × vocab], after a forward
// without a cache and with activations of every layer. It overwrites the activations' gateUp.
func (p *pass) backward(g *gradients, dlogits []float32) {
	m, h := p.m, p.m.cfg.HiddenSize
	n := len(p.want)
	g.dhidden = grow(g.dhidden, n*h)
	g.linear(&m.head, g.dhidden, dlogits, p.hidden, n, 0)
	g.dx = grow(g.dx, n*h)
	clear(g.dx)
	g.norm(m.norm, g.dx, g.dhidden, p.inv, p.final)
	for l := len(m.layers) - 1; l >= 0; l-- {
		p.layerBackward(g, l)
	}
	for r, t := range p.tokens {
		d := g.dx[r*h : (r+1)*h]
		if m.embed.transposed() {
			for i, v := range d {
				g.flat[m.embed.off+i*m.embed.out+int(t)] += v
			}
			continue
		}
		axpy(d, g.flat[m.embed.off+int(t)*h:][:h])
	}
}

// layerBackward turns g.dx from the gradient of the layer's output to that of its input.
func (p *pass) layerBackward(g *gradients, l int) {
	m, a, ly := p.m, p.activations(l), &p.m.layers[l]
	h, f, q, w := m.cfg.HiddenSize, m.cfg.IntermediateSize, m.cfg.qDim(), m.cfg.KVDim()
	rows, n := len(p.tokens), len(p.tokens)
	pos, normQ := p.pos, a.attnNorm
	last := l == len(m.layers)-1
	if last {
		pos, n, normQ = p.posWant, len(p.want), a.normQ
	}

	g.dact, g.dnorm = grow(g.dact, n*f), grow(g.dnorm, n*h)
	g.linear(&ly.down, g.dact, g.dx, a.act, n, 0)
	swiGLUBackward(a.gateUp, a.sig, g.dact, f)
	g.linear(&ly.gateUp, g.dnorm, a.gateUp, a.mlpNorm, n, 0)
	g.norm(ly.mlpNorm, g.dx, g.dnorm, a.mlpInv, a.x1)

	g.dattn, g.dq, g.dkv = grow(g.dattn, n*q), grow(g.dq, n*q), grow(g.dkv, rows*2*w)
	g.linear(&ly.o, g.dattn, g.dx, a.attn, n, 0)
	clear(g.dkv)
	g.vT = grow(g.vT, w*rows)
	for _, s := range p.spans {
		k := a.kv[s.from*2*w:]
		kv := keyValues{kT: a.kT[s.from:], ldk: rows}
		transposeStrided(g.vT[s.from:], rows, k[w:], 2*w, s.to-s.from, w)
		from, to := s.queries(last)
		g.p, g.ds = m.attendBackward(g.dq[from*q:], g.dkv[s.from*2*w:], g.dattn[from*q:], a.q[from*q:], pos[from:to], kv, k, g.vT[s.from:], g.p, g.ds)
	}
	m.rope(g.dq, q, m.cfg.NumAttentionHeads, pos, true)
	m.rope(g.dkv, 2*w, m.cfg.NumKeyValueHeads, p.pos, true)
	g.headNorms(ly.qNorm, g.dq, q, q, a.qInv, a.rawQ)
	g.headNorms(ly.kNorm, g.dkv, 2*w, w, a.kInv, a.rawK)

	g.linear(&ly.q, g.dnorm, g.dq, normQ, n, 0)
	if last {
		g.dx, g.spare = spread(g.dx, g.spare, p.want, rows, h), g.dx
		g.dnorm, g.spare = spread(g.dnorm, g.spare, p.want, rows, h), g.dnorm
	}
	g.linear(&ly.kv, g.dnorm, g.dkv, a.attnNorm, rows, 1)
	g.norm(ly.attnNorm, g.dx, g.dnorm, a.attnInv, a.x)
}

// spread brings src, a row for each wanted one, to dst, a row for each of rows; the others are zero.
func spread(src, dst []float32, want []int32, rows, width int) []float32 {
	dst = grow(dst, rows*width)
	clear(dst)
	for i, r := range want {
		copy(dst[int(r)*width:], src[i*width:(i+1)*width])
	}
	return dst
}

// linear adds the gradient of l's weights and writes that of its input, dx = dy·w + beta·dx.
func (g *gradients) linear(l *linear, dx, dy, x []float32, rows int, beta float32) {
	gemm(rows, l.in, l.out, dy, l.out, l.w, l.in, beta, dx, l.in)
	dw := g.flat[l.off : l.off+len(l.w)]
	if l.transposed() {
		g.xT = grow(g.xT, rows*l.in)
		transpose(g.xT, x, rows, l.in)
		gemm(l.in, l.out, rows, g.xT, rows, dy, l.out, 1, dw, l.out)
		return
	}
	g.xT = grow(g.xT, rows*l.out)
	transpose(g.xT, dy, rows, l.out)
	gemm(l.out, l.in, rows, g.xT, rows, x, l.in, 1, dw, l.in)
}

// norm adds the gradients of a norm to those of its weights and of its input.
func (g *gradients) norm(v vector, dx, dy, inv, x []float32) {
	rmsNormBackward(dx, g.flat[v.off:v.off+len(v.w)], dy, inv, x, v.w)
}

// headNorms adds the gradient of the norm that vector.heads applied, and turns that of the normed heads in dx, [rows ×
// width] with stride ldx, into that of the heads before.
func (g *gradients) headNorms(v vector, dx []float32, ldx, width int, inv, raw []float32) {
	if len(v.w) == 0 {
		return
	}
	n := width / len(v.w)
	g.dhead = grow(g.dhead, width)
	for r := range len(raw) / width {
		row := dx[r*ldx : r*ldx+width]
		copy(g.dhead, row)
		clear(row)
		g.norm(v, row, g.dhead, inv[r*n:(r+1)*n], raw[r*width:(r+1)*width])
	}
}
