package lm

import (
	"fmt"
	"math"
	"testing"
)

// referenceLogits is the model written down as naively as possible, in float64, one position at a time, from the tensors
// under their Hugging Face names: the oracle for everything that is fast.
func referenceLogits(m *Model, tokens []int32) []float64 {
	c := m.cfg
	h, d, f := c.HiddenSize, c.headDim(), c.IntermediateSize
	weight := func(format string, args ...any) []float32 {
		for _, p := range m.params {
			if p.Name == fmt.Sprintf(format, args...) {
				return p.Data
			}
		}
		panic("no tensor " + fmt.Sprintf(format, args...))
	}
	mul := func(w []float32, x []float64) []float64 { // w·x with w [out × in]
		out := make([]float64, len(w)/len(x))
		for o := range out {
			for i, v := range x {
				out[o] += float64(w[o*len(x)+i]) * v
			}
		}
		return out
	}
	norm := func(x []float64, w []float32) []float64 {
		var sum float64
		for _, v := range x {
			sum += v * v
		}
		out := make([]float64, len(x))
		for i, v := range x {
			out[i] = v / math.Sqrt(sum/float64(len(x))+c.RMSNormEps) * float64(w[i])
		}
		return out
	}
	rotate := func(x []float64, pos int) []float64 { // x·cos + rotate_half(x)·sin
		out := make([]float64, len(x))
		for at := 0; at < len(x); at += d {
			for i := range d {
				angle := float64(pos) / math.Pow(c.RopeTheta, float64(2*(i%(d/2)))/float64(d))
				half := -x[at+(i+d/2)%d]
				if i >= d/2 {
					half = -half
				}
				out[at+i] = x[at+i]*math.Cos(angle) + half*math.Sin(angle)
			}
		}
		return out
	}
	xs := make([][]float64, len(tokens))
	for i, t := range tokens {
		for _, v := range weight("model.embed_tokens.weight")[int(t)*h : int(t+1)*h] {
			xs[i] = append(xs[i], float64(v))
		}
	}
	for l := range c.NumHiddenLayers {
		var keys, values [][]float64
		for i, x := range xs {
			n := norm(x, weight("model.layers.%d.input_layernorm.weight", l))
			q := mul(weight("model.layers.%d.self_attn.q_proj.weight", l), n)
			k := mul(weight("model.layers.%d.self_attn.k_proj.weight", l), n)
			if c.ModelType == TypeQwen3 {
				for at := 0; at < len(q); at += d {
					copy(q[at:], norm(q[at:at+d], weight("model.layers.%d.self_attn.q_norm.weight", l)))
				}
				for at := 0; at < len(k); at += d {
					copy(k[at:], norm(k[at:at+d], weight("model.layers.%d.self_attn.k_norm.weight", l)))
				}
			}
			q = rotate(q, i)
			keys = append(keys, rotate(k, i))
			values = append(values, mul(weight("model.layers.%d.self_attn.v_proj.weight", l), n))
			attn := make([]float64, len(q))
			for head := range c.NumAttentionHeads {
				kvAt := head / (c.NumAttentionHeads / c.NumKeyValueHeads) * d
				p, sum := make([]float64, i+1), 0.0
				for j := range p {
					for e := range d {
						p[j] += q[head*d+e] * keys[j][kvAt+e]
					}
					p[j] = math.Exp(p[j] / math.Sqrt(float64(d)))
					sum += p[j]
				}
				for j := range p {
					for e := range d {
						attn[head*d+e] += p[j] / sum * values[j][kvAt+e]
					}
				}
			}
			for e, v := range mul(weight("model.layers.%d.self_attn.o_proj.weight", l), attn) {
				x[e] += v
			}
			n = norm(x, weight("model.layers.%d.post_attention_layernorm.weight", l))
			gate, up := mul(weight("model.layers.%d.mlp.gate_proj.weight", l), n), mul(weight("model.layers.%d.mlp.up_proj.weight", l), n)
			for e := range f {
				gate[e] *= up[e] / (1 + math.Exp(-gate[e]))
			}
			for e, v := range mul(weight("model.layers.%d.mlp.down_proj.weight", l), gate) {
				x[e] += v
			}
		}
	}
	head := weight(nameEmbed)
	if !c.TieWordEmbeddings {
		head = weight(nameHead)
	}
	return mul(head, norm(xs[len(xs)-1], weight("model.norm.weight")))
}

// TestReference: the decoder computes what the formulas say.
func TestReference(t *testing.T) { eachShape(t, 37, testReference) }

func testReference(t *testing.T, cfg Config) {
	m := newModel(t, cfg, 3)
	m.refresh()
	rng := NewRNG(2)
	tokens := make([]int32, 50)
	for i := range tokens {
		tokens[i] = rng.Int32N(int32(cfg.VocabSize))
	}
	got := decodeAlone(t, m, tokens)
	for _, n := range []int{1, 2, 17, 50} {
		for i, want := range referenceLogits(m, tokens[:n]) {
			if diff := math.Abs(float64(got[n-1][i]) - want); diff > 1e-4*(1+math.Abs(want)) {
				t.Fatalf("logit %d after %d tokens is %g, want %g", i, n, got[n-1][i], want)
			}
		}
	}
}
