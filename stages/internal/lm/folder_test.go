package lm

import (
	"bytes"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

// TestFolder: a model survives its folder bit for bit, the folder has what Hugging Face's loaders read, and its bytes do
// not change from one writing to the next.
func TestFolder(t *testing.T) { eachShape(t, newTokenizer(t, "abc").VocabSize(), testFolder) }

func testFolder(t *testing.T, cfg Config) {
	tok := newTokenizer(t, "abc")
	m := newModel(t, cfg, 1)
	one, two := t.TempDir(), t.TempDir()
	for _, dir := range []string{one, two} {
		if err := SaveFolder(dir, m, tok); err != nil {
			t.Fatal(err)
		}
	}
	back, backTok, err := LoadFolder(one)
	if err != nil {
		t.Fatal(err)
	}
	if !sameBits(back.flat, m.flat) || backTok.Alphabet() != "abc" || !reflect.DeepEqual(back.Config(), m.Config()) {
		t.Error("the folder gives another model")
	}
	for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "generation_config.json"} {
		a, err := os.ReadFile(filepath.Join(one, name))
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(filepath.Join(two, name))
		if err != nil || !bytes.Equal(a, b) {
			t.Errorf("%s differs from one writing to the next (%v)", name, err)
		}
	}
	if err := SaveFolder(two, m, newTokenizer(t, "abcd")); err == nil {
		t.Error("a tokenizer of another size is accepted")
	}
	for _, name := range []string{"config.json", "model.safetensors", "tokenizer.json"} {
		if err := os.WriteFile(filepath.Join(two, name), []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, _, err := LoadFolder(two); err == nil {
			t.Errorf("a folder with an empty %s is accepted", name)
		}
		if err := SaveFolder(two, m, tok); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLoadRefuses: wrong names or shapes leave the model as it was.
func TestLoadRefuses(t *testing.T) {
	m := newModel(t, tinyConfig(13), 1)
	before := m.Clone()
	good := func() []Param { return newModel(t, tinyConfig(13), 2).Params() }
	for name, params := range map[string][]Param{
		"missing": good()[1:],
		"twice":   append(good(), good()[0]),
		"extra":   append(good(), Param{Name: "lm_head.weight", Shape: []int{1}, Data: []float32{1}}),
		"shape":   append(good()[1:], Param{Name: "model.embed_tokens.weight", Shape: []int{24, 13}, Data: make([]float32, 24*13)}),
		"length":  append(good()[1:], Param{Name: "model.embed_tokens.weight", Shape: []int{13, 24}, Data: make([]float32, 3)}),
	} {
		if err := m.Load(params); err == nil {
			t.Errorf("%s: no error", name)
		}
		if !sameBits(m.flat, before.flat) {
			t.Fatalf("%s: the model changed", name)
		}
	}
	twice := func(name string, change float32) []Param {
		p := good()
		embed := p[slices.IndexFunc(p, func(p Param) bool { return p.Name == nameEmbed })]
		data := slices.Clone(embed.Data)
		data[0] += change
		return append(p, Param{Name: name, Shape: embed.Shape, Data: data})
	}
	if err := m.Load(twice(nameHead, 1)); err == nil || !sameBits(m.flat, before.flat) {
		t.Errorf("another output projection than the embeddings it is tied to: %v", err)
	}
	if err := m.Load(twice(nameHead, 0)); err != nil || sameBits(m.flat, before.flat) {
		t.Errorf("embeddings given twice: %v", err)
	}
	copy(m.flat, before.flat)
	if err := m.Load(good()); err != nil || sameBits(m.flat, before.flat) {
		t.Errorf("good weights: %v", err)
	}
}

// TestConfigValidate lists what is refused.
func TestConfigValidate(t *testing.T) {
	if err := tinyConfig(13).Validate(); err != nil {
		t.Fatal(err)
	}
	for name, spoil := range map[string]func(c *Config){
		"vocabulary":   func(c *Config) { c.VocabSize = 0 },
		"heads":        func(c *Config) { c.NumAttentionHeads = 5 },
		"kv heads":     func(c *Config) { c.NumKeyValueHeads = 3 },
		"odd head":     func(c *Config) { c.HiddenSize = 20 },
		"layers":       func(c *Config) { c.NumHiddenLayers = -1 },
		"huge":         func(c *Config) { c.VocabSize, c.HiddenSize = 1<<20, 1<<14 },
		"positions":    func(c *Config) { c.MaxPositionEmbeddings, c.HeadDim = 1<<20, 1<<10 },
		"odd head_dim": func(c *Config) { c.HeadDim = 7 },
		"no head_dim":  func(c *Config) { c.ModelType = TypeQwen3 },
		"architecture": func(c *Config) { c.ModelType = "mistral" },
		"activation":   func(c *Config) { c.HiddenAct = "gelu" },
		"type":         func(c *Config) { c.TorchDtype = "bfloat16" },
		"rope":         func(c *Config) { c.RopeScaling = map[string]any{"factor": 8} },
		"bias":         func(c *Config) { c.MLPBias = true },
		"eos":          func(c *Config) { c.EOSTokenID = 99 },
		"epsilon":      func(c *Config) { c.RMSNormEps = 0 },
		"theta":        func(c *Config) { c.RopeTheta = 0 },
	} {
		c := tinyConfig(13)
		spoil(&c)
		if c.Validate() == nil {
			t.Errorf("%s: accepted", name)
		}
		if _, err := New(c, 1); err == nil {
			t.Errorf("%s: a model is made of it", name)
		}
	}
}
