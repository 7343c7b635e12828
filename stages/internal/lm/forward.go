package lm

// span is a run of consecutive rows that continue one sequence.
type span struct {
	from, to         int // its rows
	wantFrom, wantTo int // which of the wanted rows are its
	slot             int // of the decoder's cache
}

// pass is the workspace of one goroutine: rows of several sequences on their way through the layers.
type pass struct {
	m      *Model
	tokens []int32
	pos    []int32 // position of each row in its sequence
	spans  []span
	want   []int32 // ascending rows whose hidden state is wanted after the last layer
	cache  *cache  // where earlier keys and values lie; nil: the spans are whole sequences

	acts    []activations // one per layer; a decoder's passes use the same for all layers
	posWant []int32
	final   []float32 // [want × hidden] before the last norm
	hidden  []float32 // [want × hidden] after it
	inv     []float32
	logits  []float32 // [want × vocab]
	scores  []float32
}

// activations are what one layer computed. Q is the number of wanted rows in the last layer, else that of all rows R.
type activations struct {
	x, attnNorm []float32 // [R × hidden]: the layer's input, and normed
	attnInv     []float32 // [R]
	kv, kT      []float32 // [R × 2·kvDim] keys, values; [kvDim × R] keys transposed (without a cache)
	xq, normQ   []float32 // [Q × hidden]: x and attnNorm of the Q rows
	q, attn     []float32 // [Q × qDim]
	rawQ, rawK  []float32 // [Q × qDim], [R × kvDim]: before the norms of their heads, where there are any
	qInv, kInv  []float32 // [Q × heads], [R × kvHeads]
	x1, mlpNorm []float32 // [Q × hidden]: after attention, and normed
	mlpInv      []float32 // [Q]
	gateUp      []float32 // [Q × 2·ffn]
	sig, act    []float32 // [Q × ffn]
}

// reset empties the pass.
func (p *pass) reset() {
	p.tokens, p.pos, p.spans, p.want = p.tokens[:0], p.pos[:0], p.spans[:0], p.want[:0]
}

// forward computes hidden and logits of the wanted rows.
func (p *pass) forward() {
	m, h := p.m, p.m.cfg.HiddenSize
	rows := len(p.tokens)
	x := p.layerInput(0, rows)
	for r, t := range p.tokens {
		copy(x[r*h:(r+1)*h], m.embed.w[int(t)*h:int(t+1)*h])
	}
	for l := range m.layers {
		p.layer(l)
	}
	n := len(p.want)
	p.hidden, p.inv, p.logits = grow(p.hidden, n*h), grow(p.inv, n), grow(p.logits, n*m.cfg.VocabSize)
	rmsNorm(p.hidden, p.inv, p.final, m.norm.w, m.cfg.RMSNormEps)
	m.head.forward(p.logits, p.hidden, n, 0)
}

func (p *pass) activations(l int) *activations { return &p.acts[min(l, len(p.acts)-1)] }

// layerInput is where the rows that enter layer l go; behind the last layer that is final.
func (p *pass) layerInput(l, rows int) []float32 {
	if l == len(p.m.layers) {
		p.final = grow(p.final, rows*p.m.cfg.HiddenSize)
		return p.final
	}
	a := p.activations(l)
	a.x = grow(a.x, rows*p.m.cfg.HiddenSize)
	return a.x
}

func (p *pass) layer(l int) {
	m, a, ly := p.m, p.activations(l), &p.m.layers[l]
	h, f, q, w, eps := m.cfg.HiddenSize, m.cfg.IntermediateSize, m.cfg.qDim(), m.cfg.KVDim(), m.cfg.RMSNormEps
	rows := len(p.tokens)
	a.attnNorm, a.attnInv, a.kv = grow(a.attnNorm, rows*h), grow(a.attnInv, rows), grow(a.kv, rows*2*w)
	rmsNorm(a.attnNorm, a.attnInv, a.x, ly.attnNorm.w, eps)
	ly.kv.forward(a.kv, a.attnNorm, rows, 0)
	a.rawK, a.kInv = ly.kNorm.heads(a.kv, 2*w, w, rows, a.rawK, a.kInv, eps)
	m.rope(a.kv, 2*w, m.cfg.NumKeyValueHeads, p.pos, false)

	// From here on the last layer computes only the rows that are wanted.
	pos, n := p.pos, rows
	xq, normQ := a.x, a.attnNorm
	last := l == len(m.layers)-1
	if last {
		n = len(p.want)
		p.posWant = grow(p.posWant, n)
		a.xq, a.normQ = grow(a.xq, n*h), grow(a.normQ, n*h)
		for i, r := range p.want {
			p.posWant[i] = p.pos[r]
			copy(a.xq[i*h:(i+1)*h], a.x[int(r)*h:])
			copy(a.normQ[i*h:(i+1)*h], a.attnNorm[int(r)*h:])
		}
		pos, xq, normQ = p.posWant, a.xq, a.normQ
	}
	a.q, a.attn = grow(a.q, n*q), grow(a.attn, n*q)
	ly.q.forward(a.q, normQ, n, 0)
	a.rawQ, a.qInv = ly.qNorm.heads(a.q, q, q, n, a.rawQ, a.qInv, eps)
	m.rope(a.q, q, m.cfg.NumAttentionHeads, pos, false)
	for _, s := range p.spans {
		kv := p.keyValues(l, a, s)
		from, to := s.queries(last)
		p.scores = m.attend(a.attn[from*q:], a.q[from*q:], pos[from:to], kv, p.scores)
	}
	a.x1 = grow(a.x1, n*h)
	copy(a.x1, xq[:n*h])
	ly.o.forward(a.x1, a.attn, n, 1)

	a.mlpNorm, a.mlpInv = grow(a.mlpNorm, n*h), grow(a.mlpInv, n)
	a.gateUp, a.sig, a.act = grow(a.gateUp, n*2*f), grow(a.sig, n*f), grow(a.act, n*f)
	rmsNorm(a.mlpNorm, a.mlpInv, a.x1, ly.mlpNorm.w, eps)
	ly.gateUp.forward(a.gateUp, a.mlpNorm, n, 0)
	swiGLU(a.act, a.sig, a.gateUp, f)
	out := p.layerInput(l+1, n)
	copy(out, a.x1)
	ly.down.forward(out, a.act, n, 1)
}

// queries is the range of the span's queries: its rows, or in the last layer its wanted ones.
func (s span) queries(last bool) (from, to int) {
	if last {
		return s.wantFrom, s.wantTo
	}
	return s.from, s.to
}

// keyValues stores the span's new keys and values and returns them with all earlier ones.
func (p *pass) keyValues(l int, a *activations, s span) keyValues {
	w := p.m.cfg.KVDim()
	k := a.kv[s.from*2*w:]
	if p.cache != nil {
		return p.cache.append(l, s.slot, int(p.pos[s.from]), k, s.to-s.from)
	}
	rows := len(p.tokens)
	a.kT = grow(a.kT, w*rows)
	transposeStrided(a.kT[s.from:], rows, k, 2*w, s.to-s.from, w)
	return keyValues{kT: a.kT[s.from:], ldk: rows, v: k[w:], ldv: 2 * w}
}

// forward is y = x·wT + beta·y for rows rows.
func (l *linear) forward(y, x []float32, rows int, beta float32) {
	gemm(rows, l.out, l.in, x, l.in, l.wT, l.out, beta, y, l.out)
}

// heads norms every head in the rows of x, [rows × width] with stride ldx, in place, and returns what stood there and
// 1/rms of every head, in raw and inv where they are large enough. A vector that is empty is no norm.
func (v vector) heads(x []float32, ldx, width, rows int, raw, inv []float32, eps float64) (rawX, invX []float32) {
	if len(v.w) == 0 {
		return raw, inv
	}
	n := width / len(v.w)
	raw, inv = grow(raw, rows*width), grow(inv, rows*n)
	for r := range rows {
		from, to := x[r*ldx:r*ldx+width], raw[r*width:(r+1)*width]
		copy(to, from)
		rmsNorm(from, inv[r*n:(r+1)*n], to, v.w, eps)
	}
	return raw, inv
}
