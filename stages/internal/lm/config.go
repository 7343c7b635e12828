package lm

import (
	"errors"
	"fmt"
)

// Values of Config.ModelType.
const (
	TypeLlama = "llama"
	TypeQwen3 = "qwen3" // Llama with an RMSNorm of every head of the queries and the keys, before they are turned
)

// Config is the config.json of a Hugging Face Llama or Qwen3 model, as far as this package implements it.
type Config struct {
	Architectures         []string `json:"architectures"`
	ModelType             string   `json:"model_type"`
	VocabSize             int      `json:"vocab_size"`
	HiddenSize            int      `json:"hidden_size"`
	NumHiddenLayers       int      `json:"num_hidden_layers"`
	NumAttentionHeads     int      `json:"num_attention_heads"`
	NumKeyValueHeads      int      `json:"num_key_value_heads"`
	HeadDim               int      `json:"head_dim,omitempty"` // 0: HiddenSize / NumAttentionHeads
	IntermediateSize      int      `json:"intermediate_size"`
	MaxPositionEmbeddings int      `json:"max_position_embeddings"`
	RopeTheta             float64  `json:"rope_theta"`
	RMSNormEps            float64  `json:"rms_norm_eps"`
	HiddenAct             string   `json:"hidden_act"`
	TieWordEmbeddings     bool     `json:"tie_word_embeddings"`
	InitializerRange      float64  `json:"initializer_range"`
	TorchDtype            string   `json:"torch_dtype"`
	BOSTokenID            int      `json:"bos_token_id"`
	EOSTokenID            int      `json:"eos_token_id"`
	PadTokenID            int      `json:"pad_token_id"`

	// These are written as their Hugging Face defaults and refused when they ask for something else.
	AttentionBias bool `json:"attention_bias"`
	MLPBias       bool `json:"mlp_bias"`
	RopeScaling   any  `json:"rope_scaling"`
}

// NewConfig is a model of the given width, depth and heads with the defaults of the Llama family: base 10,000 for the
// rotary angles, epsilon 1e-5, and the token ids of a [Tokenizer].
func NewConfig(vocab, hidden, layers, heads, kvHeads, ffn, maxPositions int) Config {
	return Config{
		Architectures: []string{"LlamaForCausalLM"}, ModelType: "llama",
		VocabSize: vocab, HiddenSize: hidden, NumHiddenLayers: layers, NumAttentionHeads: heads, NumKeyValueHeads: kvHeads,
		IntermediateSize: ffn, MaxPositionEmbeddings: maxPositions,
		RopeTheta: 10000, RMSNormEps: 1e-5, HiddenAct: "silu", TieWordEmbeddings: true, InitializerRange: 0.02, TorchDtype: typeFloat32,
		BOSTokenID: int(tokenBOS), EOSTokenID: int(tokenEOS), PadTokenID: int(tokenPad),
	}
}

// Qwen3 is c in the shape of Qwen3, with that family's base 1,000,000 for the rotary angles and epsilon 1e-6.
func (c Config) Qwen3() Config {
	c.Architectures, c.ModelType = []string{"Qwen3ForCausalLM"}, TypeQwen3
	c.HeadDim = c.headDim() // Hugging Face's default is 128, whatever the width
	c.RopeTheta, c.RMSNormEps = 1e6, 1e-6
	return c
}

// Bounds of what [Config.Validate] accepts, so that a hostile config.json cannot ask for all of the memory.
const (
	maxParameters = 1 << 30
	maxAngles     = 1 << 27 // of rotary positions: a million positions of heads of 128
)

// Validate says what this package cannot run, all of it at once.
func (c Config) Validate() error {
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf(format, args...))
		}
	}
	within := func(name string, v, limit int) {
		check(v >= 1 && v <= limit, "%s = %d: allowed are 1 to %d", name, v, limit)
	}
	check(c.ModelType == TypeLlama || c.ModelType == TypeQwen3, "model_type = %q: only %q and %q are supported", c.ModelType, TypeLlama, TypeQwen3)
	check(c.HiddenAct == "silu", "hidden_act = %q: only \"silu\" is supported", c.HiddenAct)
	check(c.TorchDtype == typeFloat32, "torch_dtype = %q: only %q and %q are supported", c.TorchDtype, typeFloat32, typeBFloat16)
	check(!c.AttentionBias && !c.MLPBias, "attention_bias, mlp_bias = true: biases are not supported")
	check(c.RopeScaling == nil, "rope_scaling = %v: scaled rotary positions are not supported", c.RopeScaling)
	within("vocab_size", c.VocabSize, 1<<20)
	within("hidden_size", c.HiddenSize, 1<<14)
	within("num_hidden_layers", c.NumHiddenLayers, 256)
	within("num_attention_heads", c.NumAttentionHeads, 1<<10)
	within("num_key_value_heads", c.NumKeyValueHeads, 1<<10)
	check(c.HeadDim >= 0 && c.HeadDim <= 1<<10 && c.HeadDim%2 == 0, "head_dim = %d: must be even, and at most %d", c.HeadDim, 1<<10)
	check(c.HeadDim > 0 || !c.headNorms(), "head_dim = %d: must be given for %q", c.HeadDim, c.ModelType)
	within("intermediate_size", c.IntermediateSize, 1<<16)
	within("max_position_embeddings", c.MaxPositionEmbeddings, 1<<20)
	check(c.RopeTheta >= 1 && c.RopeTheta <= 1e12, "rope_theta = %g: allowed are 1 to 1e12", c.RopeTheta)
	check(c.RMSNormEps > 0 && c.RMSNormEps < 1, "rms_norm_eps = %g: must lie between 0 and 1", c.RMSNormEps)
	check(c.InitializerRange > 0 && c.InitializerRange <= 1, "initializer_range = %g: must lie between 0 and 1", c.InitializerRange)
	for _, t := range []struct {
		name string
		id   int
	}{{"bos_token_id", c.BOSTokenID}, {"eos_token_id", c.EOSTokenID}, {"pad_token_id", c.PadTokenID}} {
		check(t.id >= 0 && t.id < c.VocabSize, "%s = %d: not in the vocabulary of %d", t.name, t.id, c.VocabSize)
	}
	if len(errs) == 0 {
		check(c.HeadDim > 0 || c.HiddenSize%c.NumAttentionHeads == 0 && c.headDim()%2 == 0,
			"hidden_size = %d: must be a multiple of twice the %d attention heads", c.HiddenSize, c.NumAttentionHeads)
		check(c.NumAttentionHeads%c.NumKeyValueHeads == 0,
			"num_key_value_heads = %d: must divide the %d attention heads", c.NumKeyValueHeads, c.NumAttentionHeads)
		check(c.MaxPositionEmbeddings*c.headDim() <= maxAngles, "max_position_embeddings = %d: too many for heads of %d", c.MaxPositionEmbeddings, c.headDim())
		check(c.parameters() <= maxParameters, "the model has %d parameters: at most %d are supported", c.parameters(), maxParameters)
	}
	return errors.Join(errs...)
}

// headDim is the width of one head.
func (c Config) headDim() int {
	if c.HeadDim > 0 {
		return c.HeadDim
	}
	return c.HiddenSize / c.NumAttentionHeads
}

// qDim is the width of all queries of one position.
func (c Config) qDim() int { return c.NumAttentionHeads * c.headDim() }

// KVDim is the width of all keys, and of all values, of one position.
func (c Config) KVDim() int { return c.NumKeyValueHeads * c.headDim() }

// headNorms says whether every head of the queries and the keys has an RMSNorm.
func (c Config) headNorms() bool { return c.ModelType == TypeQwen3 }

// parameters is the number of weights.
func (c Config) parameters() int {
	h := c.HiddenSize
	layer := h * (2 + 2*c.qDim() + 2*c.KVDim() + 3*c.IntermediateSize)
	if c.headNorms() {
		layer += 2 * c.headDim()
	}
	embeddings := h * c.VocabSize
	if !c.TieWordEmbeddings {
		embeddings *= 2
	}
	return embeddings + h + c.NumHiddenLayers*layer
}

// sameShape says whether weights of one model fit the other and mean the same.
func (c Config) sameShape(o Config) bool {
	return c.ModelType == o.ModelType && c.VocabSize == o.VocabSize && c.HiddenSize == o.HiddenSize && c.NumHiddenLayers == o.NumHiddenLayers &&
		c.NumAttentionHeads == o.NumAttentionHeads && c.NumKeyValueHeads == o.NumKeyValueHeads && c.headDim() == o.headDim() &&
		c.IntermediateSize == o.IntermediateSize && c.MaxPositionEmbeddings == o.MaxPositionEmbeddings &&
		c.TieWordEmbeddings == o.TieWordEmbeddings && c.RopeTheta == o.RopeTheta && c.RMSNormEps == o.RMSNormEps
}
