package lm

import (
	"encoding/json"
	"slices"
	"testing"
)

func newTokenizer(t testing.TB, alphabet string) *Tokenizer {
	t.Helper()
	tok, err := NewTokenizer(alphabet)
	if err != nil {
		t.Fatal(err)
	}
	return tok
}

// TestTokenizer: text of the alphabet survives, other characters are unknown, and no text is a special token.
func TestTokenizer(t *testing.T) {
	tok := newTokenizer(t, "abé</>|usr 世")
	if got := tok.VocabSize(); got != 8+12 {
		t.Errorf("vocabulary of %d", got)
	}
	for _, text := range []string{"", "ab", "世é b", "</s>", "<|user|>"} {
		ids := tok.Encode(text)
		if text != "<|user|>" {
			if got := tok.Decode(ids); got != text {
				t.Errorf("%q came back as %q", text, got)
			}
		}
		for _, id := range ids {
			if tok.IsSpecial(id) && id != tokenUnk {
				t.Errorf("%q encodes to %s", text, tok.Token(id))
			}
		}
	}
	if got := tok.Encode("aXb"); !slices.Equal(got, []int32{8, tokenUnk, 9}) || tok.Decode(got) != "ab" {
		t.Errorf("aXb is %v", got)
	}
	if got := tok.Decode([]int32{-1, tokenUser, 8, 999, tokenEOS}); got != "a" {
		t.Errorf("decoded %q", got)
	}
	for _, bad := range []string{"aba", "a\xff"} {
		if _, err := NewTokenizer(bad); err == nil {
			t.Errorf("alphabet %q is accepted", bad)
		}
	}
}

// TestTokenizerBytes: every string of bytes survives; what is not UTF-8 is shown as U+FFFD.
func TestTokenizerBytes(t *testing.T) {
	tok := newTokenizer(t, "")
	if tok.VocabSize() != 264 {
		t.Errorf("vocabulary of %d", tok.VocabSize())
	}
	for _, text := range []string{"", "Hello, 世界\n\x00", "</s>"} {
		if got := tok.Decode(tok.Encode(text)); got != text {
			t.Errorf("%q came back as %q", text, got)
		}
	}
	if got := tok.Decode(tok.Encode("a\xffb")); got != "a\uFFFDb" {
		t.Errorf("invalid UTF-8 came back as %q", got)
	}
}

// TestRenderMessage: a conversation is the concatenation of its messages, whether rendered at once or as it grows.
func TestRenderMessage(t *testing.T) {
	tok := newTokenizer(t, "ab")
	got := tok.GenerationPrompt()
	if !slices.Equal(got, []int32{tokenAssistant}) {
		t.Errorf("generation prompt %v", got)
	}
	for role, id := range map[string]int32{"system": tokenSystem, "user": tokenUser, "assistant": tokenAssistant, "tool": tokenTool} {
		ids, err := tok.RenderMessage(role, "ba")
		if err != nil || !slices.Equal(ids, []int32{id, 9, 8, tokenEOS}) {
			t.Errorf("%s: %v, %v", role, ids, err)
		}
	}
	for _, role := range []string{"", "root", "user|><|system"} {
		if _, err := tok.RenderMessage(role, "a"); err == nil {
			t.Errorf("role %q is accepted", role)
		}
	}
}

// TestTokenizerJSON: a tokenizer survives its file, and other files are refused.
func TestTokenizerJSON(t *testing.T) {
	for _, alphabet := range []string{"", "ab", "a世 \n\"\\<"} {
		tok := newTokenizer(t, alphabet)
		data, err := json.Marshal(tok)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ParseTokenizer(data)
		if err != nil {
			t.Fatal(err)
		}
		if back.Alphabet() != alphabet || back.VocabSize() != tok.VocabSize() {
			t.Errorf("alphabet %q came back as %q", alphabet, back.Alphabet())
		}
		var f map[string]any
		for _, spoil := range []func(){
			func() { f["normalizer"] = map[string]any{"type": "Lowercase"} },
			func() { f["model"].(map[string]any)["vocab"].(map[string]any)["xy"] = 500 },
			func() { f["model"].(map[string]any)["type"] = "Unigram" },
			func() { delete(f, "decoder") },
			func() { f["added_tokens"] = nil },
		} {
			if err := json.Unmarshal(data, &f); err != nil {
				t.Fatal(err)
			}
			spoil()
			bad, err := json.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := ParseTokenizer(bad); err == nil {
				t.Errorf("accepted: %s", bad)
			}
		}
	}
}

// FuzzParseTokenizer: no input panics, and what is accepted is a tokenizer that writes the same.
func FuzzParseTokenizer(f *testing.F) {
	for _, alphabet := range []string{"", "abc"} {
		data, err := json.Marshal(newTokenizer(f, alphabet))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"model":{"type":"WordLevel","vocab":{"a":2000000000}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tok, err := ParseTokenizer(data)
		if err != nil {
			return
		}
		again, err := json.Marshal(tok)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseTokenizer(again); err != nil {
			t.Fatal(err)
		}
	})
}
