package lm

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"

	"github.com/prl-project/prl/stages/internal/bpe"
)

// chatTemplate renders as RenderMessage and GenerationPrompt do.
const chatTemplate = "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '</s>' }}{% endfor %}" +
	"{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"

// tokenizerFile is the tokenizer.json of Hugging Face's tokenizers library.
type tokenizerFile struct {
	Version       string         `json:"version"`
	Truncation    any            `json:"truncation"`
	Padding       any            `json:"padding"`
	AddedTokens   []addedToken   `json:"added_tokens"`
	Normalizer    any            `json:"normalizer"`
	PreTokenizer  map[string]any `json:"pre_tokenizer"`
	PostProcessor any            `json:"post_processor"`
	Decoder       map[string]any `json:"decoder"`
	Model         map[string]any `json:"model"`
}

type addedToken struct {
	ID         int32  `json:"id"`
	Content    string `json:"content"`
	SingleWord bool   `json:"single_word"`
	LStrip     bool   `json:"lstrip"`
	RStrip     bool   `json:"rstrip"`
	Normalized bool   `json:"normalized"`
	Special    bool   `json:"special"`
}

// MarshalJSON gives the tokenizer.json of Hugging Face's tokenizers library: for an alphabet, words of one character; for
// bytes, byte-level BPE without merges. Unlike Encode, that library reads the names of special tokens in text as these.
func (t *Tokenizer) MarshalJSON() ([]byte, error) {
	vocab := make(map[string]int32, t.VocabSize())
	f := tokenizerFile{Version: "1.0"}
	for id, s := range specialTokens {
		f.AddedTokens = append(f.AddedTokens, addedToken{ID: int32(id), Content: s, Special: true})
		vocab[s] = int32(id)
	}
	if len(t.alphabet) == 0 {
		for b, r := range bpe.ByteRunes() {
			vocab[string(r)] = numSpecial + int32(b)
		}
		byteLevel := map[string]any{"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}
		f.PreTokenizer, f.Decoder = byteLevel, byteLevel
		f.Model = map[string]any{
			"type": "BPE", "dropout": nil, "unk_token": "<unk>", "continuing_subword_prefix": nil, "end_of_word_suffix": nil,
			"fuse_unk": false, "byte_fallback": false, "ignore_merges": false, "vocab": vocab, "merges": []string{},
		}
	} else {
		for i, r := range t.alphabet {
			vocab[string(r)] = numSpecial + int32(i)
		}
		f.PreTokenizer = map[string]any{"type": "Split", "pattern": map[string]any{"Regex": `[\s\S]`}, "behavior": "Isolated", "invert": false}
		f.Decoder = map[string]any{"type": "Fuse"}
		f.Model = map[string]any{"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"}
	}
	return json.MarshalIndent(f, "", "  ")
}

// ParseTokenizer reads a tokenizer.json that MarshalJSON wrote; whatever else it says is refused.
func ParseTokenizer(data []byte) (*Tokenizer, error) {
	var f struct {
		Model struct {
			Type  string           `json:"type"`
			Vocab map[string]int32 `json:"vocab"`
		} `json:"model"`
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return nil, fmt.Errorf("parse tokenizer.json: %w", err)
	}
	alphabet := ""
	if f.Model.Type != "BPE" {
		runes := make([]rune, max(0, len(f.Model.Vocab)-int(numSpecial)))
		for s, id := range f.Model.Vocab {
			if i := int(id) - int(numSpecial); i >= 0 && i < len(runes) && len([]rune(s)) == 1 {
				runes[i] = []rune(s)[0]
			}
		}
		alphabet = string(runes)
	}
	t, err := NewTokenizer(alphabet)
	if err != nil {
		return nil, fmt.Errorf("parse tokenizer.json: %w", err)
	}
	// It is ours if what we would write says the same.
	ours, err := t.MarshalJSON()
	if err != nil {
		return nil, fmt.Errorf("parse tokenizer.json: %w", err)
	}
	var a, b any
	if err := errors.Join(json.Unmarshal(ours, &a), json.Unmarshal(data, &b)); err != nil {
		return nil, fmt.Errorf("parse tokenizer.json: %w", err)
	}
	if !reflect.DeepEqual(a, b) {
		return nil, errors.New("parse tokenizer.json: it is not a character- or byte-level tokenizer as this program writes them")
	}
	return t, nil
}
