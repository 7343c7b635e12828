package lm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// Files of a Hugging Face model folder.
const (
	fileConfig           = "config.json"
	fileWeights          = "model.safetensors"
	fileTokenizer        = "tokenizer.json"
	fileTokenizerConfig  = "tokenizer_config.json"
	fileSpecialTokens    = "special_tokens_map.json"
	fileGenerationConfig = "generation_config.json"
)

// SaveFolder writes a Hugging Face folder: config, weights, tokenizer with chat template, generation config. Its
// bytes depend on model and tokenizer alone. It is not atomic: write to a new folder and rename that.
func SaveFolder(dir string, m *Model, t *Tokenizer) error {
	if m.cfg.VocabSize != t.VocabSize() {
		return fmt.Errorf("save model: it has a vocabulary of %d, the tokenizer one of %d", m.cfg.VocabSize, t.VocabSize())
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	var weights bytes.Buffer
	if err := WriteSafetensors(&weights, m.params); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	if err := os.WriteFile(filepath.Join(dir, fileWeights), weights.Bytes(), 0o644); err != nil {
		return fmt.Errorf("save model: %w", err)
	}
	names := map[string]any{
		"bos_token": specialTokens[tokenBOS], "eos_token": specialTokens[tokenEOS],
		"pad_token": specialTokens[tokenPad], "unk_token": specialTokens[tokenUnk],
		"additional_special_tokens": specialTokens[tokenSystem:],
	}
	tokenizerConfig := map[string]any{
		"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": m.cfg.MaxPositionEmbeddings,
		"clean_up_tokenization_spaces": false, "chat_template": chatTemplate,
	}
	for k, v := range names {
		tokenizerConfig[k] = v
	}
	for name, v := range map[string]any{
		fileConfig: m.cfg, fileTokenizer: t, fileTokenizerConfig: tokenizerConfig, fileSpecialTokens: names,
		fileGenerationConfig: map[string]any{
			"bos_token_id": m.cfg.BOSTokenID, "eos_token_id": m.cfg.EOSTokenID, "pad_token_id": m.cfg.PadTokenID,
			"do_sample": true, "temperature": 1.0, "top_k": 0, "top_p": 1.0,
		},
	} {
		data, err := json.MarshalIndent(v, "", "  ")
		if err != nil {
			return fmt.Errorf("save model: %s: %w", name, err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), append(data, '\n'), 0o644); err != nil {
			return fmt.Errorf("save model: %w", err)
		}
	}
	return nil
}

// LoadFolder reads a folder that SaveFolder wrote, or one with its tokenizer.json beside what transformers' save_pretrained
// wrote of a Llama or Qwen3 model.
func LoadFolder(dir string) (*Model, *Tokenizer, error) {
	fail := func(err error) (*Model, *Tokenizer, error) {
		return nil, nil, fmt.Errorf("load model %s: %w", dir, err)
	}
	data, err := os.ReadFile(filepath.Join(dir, fileConfig))
	if err != nil {
		return fail(err)
	}
	var cfg Config
	if err := json.Unmarshal(data, &cfg); err != nil {
		return fail(fmt.Errorf("%s: %w", fileConfig, err))
	}
	if data, err = os.ReadFile(filepath.Join(dir, fileTokenizer)); err != nil {
		return fail(err)
	}
	t, err := ParseTokenizer(data)
	if err != nil {
		return fail(err)
	}
	if t.VocabSize() != cfg.VocabSize {
		return fail(fmt.Errorf("vocab_size is %d, but the tokenizer has %d tokens", cfg.VocabSize, t.VocabSize()))
	}
	m, err := newEmpty(cfg)
	if err != nil {
		return fail(err)
	}
	if data, err = os.ReadFile(filepath.Join(dir, fileWeights)); err != nil {
		return fail(err)
	}
	params, err := ReadSafetensors(data)
	if err != nil {
		return fail(err)
	}
	if err := m.Load(params); err != nil {
		return fail(err)
	}
	return m, t, nil
}
