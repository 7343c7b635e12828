package bpe

import (
	"errors"
	"fmt"
	"maps"
)

// maxVocabulary bounds the ids.
const maxVocabulary = 1 << 22

// setModel reads the vocabulary.
func (t *Tokenizer) setModel(m model) error {
	given := func(s *string) bool { return s != nil && *s != "" }
	switch {
	case m.Type != "BPE":
		return fmt.Errorf("the model %q is not supported, only BPE", m.Type)
	case m.ByteFallback:
		return errors.New("BPE with byte_fallback is not supported, only byte-level BPE")
	case m.Dropout != nil && *m.Dropout != 0:
		return fmt.Errorf("BPE with dropout %v is not supported", *m.Dropout)
	case given(m.ContinuingSubwordPrefix):
		return fmt.Errorf("BPE with continuing_subword_prefix %q is not supported", *m.ContinuingSubwordPrefix)
	case given(m.EndOfWordSuffix):
		return fmt.Errorf("BPE with end_of_word_suffix %q is not supported", *m.EndOfWordSuffix)
	}
	toByte := map[rune]byte{}
	for b, r := range ByteRunes() {
		toByte[r] = byte(b)
		id, ok := m.Vocab[string(r)]
		if !ok {
			return fmt.Errorf("the vocabulary has no token of the byte 0x%02x: it is not byte-level", b)
		}
		t.bytes[b] = id
	}
	if m.IgnoreMerges {
		t.words = make(map[string]int32, len(m.Vocab))
	}
	for name, id := range m.Vocab {
		text, ok := textOf(name, toByte)
		if err := t.setToken(id, text); err != nil {
			return fmt.Errorf("token %q: %w", name, err)
		}
		if ok && m.IgnoreMerges {
			t.words[text] = id
		}
	}
	return nil
}

// textOf is what a token of the vocabulary stands for: the bytes that its characters print; itself, and not ok, where they
// print none, so that no text encodes to it.
func textOf(name string, toByte map[rune]byte) (text string, ok bool) {
	b := make([]byte, 0, len(name))
	for _, r := range name {
		c, ok := toByte[r]
		if !ok {
			return name, false
		}
		b = append(b, c)
	}
	return string(b), true
}

func (t *Tokenizer) setToken(id int32, text string) error {
	if id < 0 || id >= maxVocabulary {
		return fmt.Errorf("its id %d is not below %d", id, maxVocabulary)
	}
	if grow := int(id) + 1 - len(t.known); grow > 0 {
		t.texts = append(t.texts, make([]string, grow)...)
		t.known = append(t.known, make([]bool, grow)...)
		t.special = append(t.special, make([]bool, grow)...)
	}
	if t.known[id] {
		return fmt.Errorf("its id %d is that of another", id)
	}
	t.texts[id], t.known[id] = text, true
	return nil
}

// setAdded reads the added tokens, some of which the vocabulary may have.
func (t *Tokenizer) setAdded(tokens []addedToken, vocab map[string]int32) error {
	var raw, normalized []named
	for _, a := range tokens {
		switch _, twice := t.added[a.Content]; {
		case a.Content == "" || twice:
			return fmt.Errorf("the added token %q is empty, or there twice", a.Content)
		case a.LStrip || a.RStrip || a.SingleWord:
			return fmt.Errorf("the added token %q with lstrip, rstrip or single_word is not supported", a.Content)
		}
		if id, ok := vocab[a.Content]; ok && id == a.ID {
			t.known[id] = false
		}
		if err := t.setToken(a.ID, a.Content); err != nil {
			return fmt.Errorf("added token %q: %w", a.Content, err)
		}
		t.added[a.Content], t.special[a.ID] = a.ID, a.Special
		if n := (named{a.Content, a.ID, a.Special}); a.Normalized {
			normalized = append(normalized, n)
		} else {
			raw = append(raw, n)
		}
	}
	maps.DeleteFunc(t.words, func(_ string, id int32) bool { return t.special[id] })
	t.raw, t.normalized = newMatcher(raw), newMatcher(normalized)
	return nil
}

// setMerges reads the merges. None makes a special token.
func (t *Tokenizer) setMerges(m model) error {
	for _, id := range t.bytes {
		if t.special[id] {
			return fmt.Errorf("the special token %q is one byte of text", t.texts[id])
		}
	}
	t.merges = make(map[pair]merge, len(m.Merges))
	for rank, data := range m.Merges {
		left, right, err := mergeOf(data)
		if err != nil {
			return err
		}
		l, okLeft := m.Vocab[left]
		r, okRight := m.Vocab[right]
		id, ok := m.Vocab[left+right]
		if !okLeft || !okRight || !ok {
			return fmt.Errorf("the merge of %q and %q: the vocabulary lacks one of them, or what they make", left, right)
		}
		if t.special[id] {
			return fmt.Errorf("the merge of %q and %q makes a special token of text", left, right)
		}
		t.merges[pair{l, r}] = merge{int32(rank), id}
	}
	return nil
}

// ByteRunes is GPT-2's printable character for each byte.
func ByteRunes() [256]rune {
	var out [256]rune
	next := rune(256)
	for b := range out {
		if (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF) {
			out[b] = rune(b)
			continue
		}
		out[b] = next
		next++
	}
	return out
}
