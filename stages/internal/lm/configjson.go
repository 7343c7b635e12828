package lm

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// UnmarshalJSON reads a config.json as transformers writes it, in the words of its versions 4 and 5: what is left out has
// Hugging Face's default, token ids that are not given are those of a [Tokenizer], and of several the first counts. What
// would change the model and is not implemented is refused, here or by [Config.Validate]. The type of the weights is that
// in memory, float32, which bfloat16 fits into.
func (c *Config) UnmarshalJSON(data []byte) error {
	type fields Config // without methods
	file := struct {
		fields
		BOSTokenID         tokenID  `json:"bos_token_id"`
		EOSTokenID         tokenID  `json:"eos_token_id"`
		PadTokenID         tokenID  `json:"pad_token_id"`
		DType              string   `json:"dtype"` // torch_dtype in version 4
		RopeParameters     *rope    `json:"rope_parameters"`
		RopeScaling        *rope    `json:"rope_scaling"` // with rope_theta, rope_parameters in version 4
		LayerTypes         []string `json:"layer_types"`
		UseSlidingWindow   bool     `json:"use_sliding_window"`
		PartialRotary      *float64 `json:"partial_rotary_factor"`
		QuantizationConfig any      `json:"quantization_config"`
	}{
		fields:     fields{RopeTheta: 10000, RMSNormEps: 1e-6, HiddenAct: "silu", InitializerRange: 0.02, TorchDtype: typeFloat32},
		BOSTokenID: tokenID(tokenBOS), EOSTokenID: tokenID(tokenEOS), PadTokenID: tokenID(tokenPad),
	}
	if err := json.Unmarshal(data, &file); err != nil {
		return err
	}
	switch {
	case file.UseSlidingWindow:
		return errors.New("use_sliding_window = true: only full attention is supported")
	case slices.ContainsFunc(file.LayerTypes, func(t string) bool { return t != "full_attention" }):
		return fmt.Errorf("layer_types = %q: only \"full_attention\" is supported", file.LayerTypes)
	case file.PartialRotary != nil && *file.PartialRotary != 1:
		return fmt.Errorf("partial_rotary_factor = %g: only 1 is supported", *file.PartialRotary)
	case file.QuantizationConfig != nil:
		return fmt.Errorf("quantization_config = %v: quantised weights are not supported", file.QuantizationConfig)
	}
	read := Config(file.fields)
	read.BOSTokenID, read.EOSTokenID, read.PadTokenID = int(file.BOSTokenID), int(file.EOSTokenID), int(file.PadTokenID)
	for _, r := range []*rope{file.RopeScaling, file.RopeParameters} {
		if r == nil {
			continue
		}
		if r.Theta != 0 {
			read.RopeTheta = r.Theta
		}
		if s := r.scaling(); s != "" {
			read.RopeScaling = s
		}
	}
	if file.DType != "" {
		read.TorchDtype = file.DType
	}
	if read.TorchDtype == typeBFloat16 {
		read.TorchDtype = typeFloat32
	}
	if read.NumKeyValueHeads == 0 {
		read.NumKeyValueHeads = read.NumAttentionHeads
	}
	if read.HeadDim == 0 && read.headNorms() {
		read.HeadDim = 128
	}
	*c = read
	return nil
}

// Types of weights that are read.
const (
	typeFloat32  = "float32"
	typeBFloat16 = "bfloat16"
)

// rope is how positions turn queries and keys.
type rope struct {
	Theta   float64  `json:"rope_theta"`
	Type    string   `json:"rope_type"`
	OldType string   `json:"type"`
	Partial *float64 `json:"partial_rotary_factor"`
}

// scaling names what the positions are beyond plain rotary ones, if anything.
func (r rope) scaling() string {
	switch t := cmp.Or(r.Type, r.OldType, "default"); {
	case t != "default":
		return t
	case r.Partial != nil && *r.Partial != 1:
		return "partial"
	}
	return ""
}

// tokenID is a token's id, or the first of a list.
type tokenID int

func (t *tokenID) UnmarshalJSON(data []byte) error {
	var list []int
	if json.Unmarshal(data, &list) == nil {
		if len(list) > 0 {
			*t = tokenID(list[0])
		}
		return nil
	}
	return json.Unmarshal(data, (*int)(t))
}
