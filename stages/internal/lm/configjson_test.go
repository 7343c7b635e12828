package lm

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// TestConfigJSON reads what transformers writes: version 5, version 4 as published with Qwen3 and Llama 3, and what they leave
// out.
func TestConfigJSON(t *testing.T) {
	base := func(change func(*Config)) Config {
		c := tinyConfig(37)
		c.RMSNormEps, c.InitializerRange = 1e-6, 0.02
		change(&c)
		return c
	}
	const sizes = `"vocab_size": 37, "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 20,
		"max_position_embeddings": 160, "tie_word_embeddings": true, `
	for name, test := range map[string]struct {
		file string
		want Config
	}{
		"qwen3, version 5": {`{"architectures": ["Qwen3ForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": null,
			"dtype": "bfloat16", "eos_token_id": null, "head_dim": 10, "hidden_act": "silu", "initializer_range": 0.02,
			"layer_types": ["full_attention", "full_attention"], "max_window_layers": 28, "model_type": "qwen3",
			"num_key_value_heads": 2, "pad_token_id": null, "rms_norm_eps": 1e-06,
			"rope_parameters": {"rope_theta": 5000000.0, "rope_type": "default"}, "sliding_window": null,
			` + sizes + `"transformers_version": "5.23.0", "use_cache": true, "use_sliding_window": false}`,
			base(func(c *Config) { *c = c.Qwen3(); c.HeadDim, c.RopeTheta = 10, 5e6 })},
		"qwen3, version 4": {`{"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "torch_dtype": "bfloat16", "bos_token_id": 7,
			"eos_token_id": 8, ` + sizes + `"num_key_value_heads": 2, "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null}`,
			base(func(c *Config) { *c = c.Qwen3(); c.HeadDim, c.BOSTokenID, c.EOSTokenID = 128, 7, 8 })},
		"llama 3": {`{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "float32", "bos_token_id": 7,
			"eos_token_id": [8, 9], "head_dim": 8, ` + sizes + `"num_key_value_heads": 2, "rope_theta": 500000.0, "rope_scaling": {"type": "default"},
			"pretraining_tp": 1, "quantization_config": null}`,
			base(func(c *Config) { c.HeadDim, c.RopeTheta, c.BOSTokenID, c.EOSTokenID = 8, 5e5, 7, 8 })},
		"llama, as little as can be": {`{"architectures": ["LlamaForCausalLM"], ` + sizes + `"model_type": "llama"}`,
			base(func(c *Config) { c.NumKeyValueHeads = 4 })},
	} {
		var got Config
		if err := json.Unmarshal([]byte(test.file), &got); err != nil || got.Validate() != nil || !reflect.DeepEqual(got, test.want) {
			t.Errorf("%s: %v, %v, %+v, want %+v", name, err, got.Validate(), got, test.want)
		}
	}
	for key, value := range map[string]string{
		"rope_scaling":          `{"rope_type": "llama3", "factor": 8}`,
		"rope_parameters":       `{"rope_theta": 10000, "rope_type": "yarn"}`,
		"partial_rotary_factor": `0.5`,
		"use_sliding_window":    `true`,
		"layer_types":           `["full_attention", "sliding_attention"]`,
		"quantization_config":   `{"bits": 4}`,
		"dtype":                 `"float16"`,
		"attention_bias":        `true`,
		"eos_token_id":          `"</s>"`,
		"model_type":            `"mixtral"`,
	} {
		var c Config
		err := json.Unmarshal([]byte(`{"model_type": "llama", `+sizes+`"`+key+`": `+value+`}`), &c)
		if err == nil {
			err = c.Validate()
		}
		word := strings.NewReplacer("parameters", "scaling", "dtype", "torch_dtype", "eos_token_id", "cannot unmarshal").Replace(key)
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%s = %s: %v", key, value, err)
		}
	}
}

// FuzzConfigJSON: no input panics, and what is valid is written and read again the same.
func FuzzConfigJSON(f *testing.F) {
	for _, c := range shapes(37) {
		data, err := json.Marshal(c)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"model_type": "qwen3", "eos_token_id": [2], "rope_parameters": {"rope_theta": 1e400}, "num_attention_heads": 0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var c, again Config
		if json.Unmarshal(data, &c) != nil || c.Validate() != nil {
			return
		}
		written, err := json.Marshal(c)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if err := json.Unmarshal(written, &again); err != nil || again.Validate() != nil || !reflect.DeepEqual(again, c) {
			t.Fatalf("%+v became %+v (%v)", c, again, err)
		}
	})
}
