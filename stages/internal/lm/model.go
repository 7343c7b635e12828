package lm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
)

// Param is a named tensor. Data is row-major and as long as the product of Shape.
type Param struct {
	Name  string
	Shape []int
	Data  []float32
}

// Model holds the weights. Reading one from many goroutines is safe; Load and an optimizer's update need it alone.
type Model struct {
	cfg    Config
	flat   []float32 // every weight, in the order of params
	params []Param   // views into flat
	embed  linear    // [vocab × hidden]
	head   linear    // the output projection, likewise; embed where they are tied
	layers []layer
	norm   vector
	// Angles of the rotary positions, [position × headDim/2].
	cos, sin []float32
}

// layer is one decoder layer. Keys and values are one matrix, and so are gate and up: they read the same input.
type layer struct {
	attnNorm, mlpNorm      vector
	qNorm, kNorm           vector // [headDim], of every head; empty in Llama
	q, kv, o, gateUp, down linear
}

// vector is a weight vector at offset off of the flat parameters.
type vector struct {
	off int
	w   []float32
}

// linear is a weight matrix at offset off of the flat parameters: w as it is stored, [out × in], and wT, a transposed
// copy, so that both y = x·wT and its gradient dx = dy·w are products without a transposed operand.
type linear struct {
	off, in, out int
	w, wT        []float32
}

// New makes a model with weights drawn from seed: N(0, initializer_range²) for the embeddings, N(0, 1/in) for the other
// matrices, with those that write to the residual stream scaled down by √(2·layers); norms are 1.
func New(cfg Config, seed uint64) (*Model, error) {
	m, err := newEmpty(cfg)
	if err != nil {
		return nil, err
	}
	rng := NewRNG(seed)
	fill(rng, m.embed.w, cfg.InitializerRange)
	if !cfg.TieWordEmbeddings {
		fill(rng, m.head.w, cfg.InitializerRange)
	}
	residual := 1 / math.Sqrt(2*float64(cfg.NumHiddenLayers))
	for _, l := range m.layers {
		for _, x := range []struct {
			linear
			scale float64
		}{{l.q, 1}, {l.kv, 1}, {l.o, residual}, {l.gateUp, 1}, {l.down, residual}} {
			fill(rng, x.w, x.scale/math.Sqrt(float64(x.in)))
		}
	}
	m.refresh()
	return m, nil
}

// NewFrom makes a model with the weights given, as Load takes them; none are drawn.
func NewFrom(cfg Config, params []Param) (*Model, error) {
	m, err := newEmpty(cfg)
	if err != nil {
		return nil, err
	}
	return m, m.Load(params)
}

func fill(rng *rand.Rand, w []float32, std float64) {
	for i := range w {
		w[i] = float32(std * rng.NormFloat64())
	}
}

// Names of the embeddings and of the output projection.
const (
	nameEmbed = "model.embed_tokens.weight"
	nameHead  = "lm_head.weight"
)

// newEmpty lays out the parameters; matrices are zero and norms one.
func newEmpty(cfg Config) (*Model, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("model config: %w", err)
	}
	m := &Model{cfg: cfg, flat: make([]float32, cfg.parameters()), layers: make([]layer, cfg.NumHiddenLayers)}
	off := 0
	add := func(name string, shape ...int) {
		n := 1
		for _, s := range shape {
			n *= s
		}
		m.params = append(m.params, Param{Name: name, Shape: shape, Data: m.flat[off : off+n : off+n]})
		off += n
	}
	norm := func(name string, width int) vector {
		v := vector{off: off, w: m.flat[off : off+width]}
		add(name, width)
		for i := range v.w {
			v.w[i] = 1
		}
		return v
	}
	// matrix lays out tensors that share their input one after the other, as one matrix.
	matrix := func(in int, tensors ...Param) linear {
		l := linear{off: off, in: in}
		for _, t := range tensors {
			add(t.Name, t.Shape[0], in)
			l.out += t.Shape[0]
		}
		l.w = m.flat[l.off:off]
		l.wT = make([]float32, len(l.w))
		return l
	}
	rows := func(name string, n int) Param { return Param{Name: name, Shape: []int{n}} }

	h, f, q, kv := cfg.HiddenSize, cfg.IntermediateSize, cfg.qDim(), cfg.KVDim()
	m.embed = matrix(h, rows(nameEmbed, cfg.VocabSize))
	for i := range m.layers {
		p := fmt.Sprintf("model.layers.%d.", i)
		l := &m.layers[i]
		l.attnNorm = norm(p+"input_layernorm.weight", h)
		l.q = matrix(h, rows(p+"self_attn.q_proj.weight", q))
		l.kv = matrix(h, rows(p+"self_attn.k_proj.weight", kv), rows(p+"self_attn.v_proj.weight", kv))
		if cfg.headNorms() {
			l.qNorm = norm(p+"self_attn.q_norm.weight", cfg.headDim())
			l.kNorm = norm(p+"self_attn.k_norm.weight", cfg.headDim())
		}
		l.o = matrix(q, rows(p+"self_attn.o_proj.weight", h))
		l.mlpNorm = norm(p+"post_attention_layernorm.weight", h)
		l.gateUp = matrix(h, rows(p+"mlp.gate_proj.weight", f), rows(p+"mlp.up_proj.weight", f))
		l.down = matrix(f, rows(p+"mlp.down_proj.weight", h))
	}
	m.norm = norm("model.norm.weight", h)
	m.head = m.embed
	if !cfg.TieWordEmbeddings {
		m.head = matrix(h, rows(nameHead, cfg.VocabSize))
	}
	m.cos, m.sin = ropeTables(cfg)
	m.refresh()
	return m, nil
}

// Config is the model's configuration.
func (m *Model) Config() Config { return m.cfg }

// Params are the weights under their Hugging Face names, as views: read them only, and write with Load.
func (m *Model) Params() []Param { return slices.Clone(m.params) }

// Clone is a copy that shares nothing with m.
func (m *Model) Clone() *Model {
	c, err := newEmpty(m.cfg)
	if err != nil {
		panic(err) // m has the same config and was made
	}
	copy(c.flat, m.flat)
	c.refresh()
	return c
}

// Load copies params into the model. Names and shapes must be exactly the model's; otherwise nothing is changed. Tied
// embeddings may be given a second time, as the output projection.
func (m *Model) Load(params []Param) error {
	if m.cfg.TieWordEmbeddings {
		params = withoutCopy(params, nameHead, nameEmbed)
	}
	if err := loadInto(m.params, params); err != nil {
		return fmt.Errorf("load weights: %w", err)
	}
	m.refresh()
	return nil
}

// withoutCopy is params without the tensor of a name, if it is the same as the original.
func withoutCopy(params []Param, name, original string) []Param {
	at := func(name string) int { return slices.IndexFunc(params, func(p Param) bool { return p.Name == name }) }
	i, j := at(name), at(original)
	if i < 0 || j < 0 || !slices.Equal(params[i].Shape, params[j].Shape) || !slices.Equal(params[i].Data, params[j].Data) {
		return params
	}
	return slices.Delete(slices.Clone(params), i, i+1)
}

// loadInto copies src into dst, which must have the same names and shapes in any order.
func loadInto(dst, src []Param) error {
	named := make(map[string]Param, len(src))
	for _, p := range src {
		if _, twice := named[p.Name]; twice {
			return fmt.Errorf("tensor %q is given twice", p.Name)
		}
		named[p.Name] = p
	}
	for _, d := range dst {
		s, ok := named[d.Name]
		if !ok {
			return fmt.Errorf("tensor %q is missing", d.Name)
		}
		if !slices.Equal(s.Shape, d.Shape) || len(s.Data) != len(d.Data) {
			return fmt.Errorf("tensor %q has shape %v and %d elements, not %v and %d", d.Name, s.Shape, len(s.Data), d.Shape, len(d.Data))
		}
		delete(named, d.Name)
	}
	for _, p := range src {
		if _, extra := named[p.Name]; extra {
			return fmt.Errorf("tensor %q does not belong to it", p.Name)
		}
	}
	for _, s := range src {
		i := slices.IndexFunc(dst, func(d Param) bool { return d.Name == s.Name })
		copy(dst[i].Data, s.Data)
	}
	return nil
}

// refresh makes the transposed copies again after the weights changed.
func (m *Model) refresh() {
	for _, l := range m.matrices() {
		l.refresh()
	}
}

// matrices are all matrices, tied ones once.
func (m *Model) matrices() []*linear {
	all := []*linear{&m.embed}
	for i := range m.layers {
		l := &m.layers[i]
		all = append(all, &l.q, &l.kv, &l.o, &l.gateUp, &l.down)
	}
	if !m.cfg.TieWordEmbeddings {
		all = append(all, &m.head)
	}
	return all
}

func (l *linear) refresh() { transpose(l.wT, l.w, l.out, l.in) }

// ropeTables holds cos and sin of position · theta^(-2i/headDim).
func ropeTables(cfg Config) (cos, sin []float32) {
	half := cfg.headDim() / 2
	cos = make([]float32, cfg.MaxPositionEmbeddings*half)
	sin = make([]float32, len(cos))
	for i := range half {
		freq := math.Pow(cfg.RopeTheta, -2*float64(i)/float64(2*half))
		for p := range cfg.MaxPositionEmbeddings {
			s, c := math.Sincos(float64(p) * freq)
			cos[p*half+i], sin[p*half+i] = float32(c), float32(s)
		}
	}
	return cos, sin
}
