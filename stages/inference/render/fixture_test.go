package render

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/stages/internal/lm"
)

var (
	qwenTokens  = []string{"<|endoftext|>", "<|im_start|>", "<|im_end|>", "+<tool_call>", "+</tool_call>", "+<tool_response>", "+</tool_response>", "+<think>", "+</think>"}
	llamaTokens = []string{"<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>", "<|eot_id|>", "<|python_tag|>"}
)

// tokenizerJSON is a tokenizer of the 256 bytes and added tokens, which begin at 1000; those with a plus are not special.
func tokenizerJSON(t testing.TB, added []string) []byte {
	t.Helper()
	vocab, next := map[string]int{}, rune(256)
	for b := range 256 { // GPT-2's characters for bytes
		r := rune(b)
		if b <= ' ' || b >= 0x7f && b <= 0xa0 || b == 0xad {
			r, next = next, next+1
		}
		vocab[string(r)] = b
	}
	var tokens []any
	for i, name := range added {
		plain := strings.HasPrefix(name, "+")
		tokens = append(tokens, map[string]any{"id": 1000 + i, "content": strings.TrimPrefix(name, "+"), "special": !plain})
	}
	data, err := json.Marshal(map[string]any{
		"added_tokens":  tokens,
		"normalizer":    map[string]any{"type": "NFC"},
		"pre_tokenizer": map[string]any{"type": "ByteLevel", "add_prefix_space": false},
		"decoder":       map[string]any{"type": "ByteLevel"},
		"model":         map[string]any{"type": "BPE", "vocab": vocab, "merges": []string{}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func newRenderer(t testing.TB, name string) Renderer {
	t.Helper()
	data := tokenizerJSON(t, qwenTokens)
	if strings.HasPrefix(name, "llama") {
		data = tokenizerJSON(t, llamaTokens)
	}
	if name == Native {
		tok, err := lm.NewTokenizer("")
		if err != nil {
			t.Fatal(err)
		}
		if data, err = json.Marshal(tok); err != nil {
			t.Fatal(err)
		}
	}
	r, err := New(name, data)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// written is tokens as people read them, the names of special ones included.
func written(r Renderer, tokens []int32) string {
	var b strings.Builder
	for _, id := range tokens {
		b.WriteString(r.Token(id))
	}
	return b.String()
}

// sampled is the tokens of an answer, in which the names of added tokens are these.
func sampled(r Renderer, text string) []int32 {
	ids := r.Encode(text)
	if begin := r.Encode(""); len(begin) > 0 && slices.Equal(ids[:len(begin)], begin) {
		return ids[len(begin):]
	}
	return ids
}
