// Package bpe is the byte-level BPE tokenizers of Hugging Face's tokenizer.json, such as those of GPT-2, Llama 3 and Qwen.
//
// It gives the very ids that the library tokenizers (0.23) gives, for every text, or refuses the file by the name of what
// it does not know. Text of a message never encodes to a special token.
package bpe

import (
	"slices"
	"strings"
	"unicode/utf8"
)

// Tokenizer is a tokenizer.json. It is immutable, and for many goroutines at once.
type Tokenizer struct {
	texts   []string // bytes that each id stands for
	known   []bool   // ids that are tokens
	special []bool
	added   map[string]int32 // added tokens by name

	raw, normalized matcher // added tokens that are found before normalization, and behind it
	nfc             bool
	splits          []split

	bytes  [256]int32
	merges map[pair]merge
	words  map[string]int32 // words that are tokens as they are; nil where they are made by merges

	before, after []int32 // of every raw text
	id            string
}

// AppendText appends the tokens of a message's text. Names of special tokens in it are text like any other; other added
// tokens are found in it. What is not UTF-8 counts as U+FFFD.
func (t *Tokenizer) AppendText(ids []int32, text string) []int32 {
	return t.encode(ids, text, false)
}

// Encode gives the tokens of a raw text as the library does: names of special tokens in it are those tokens, and tokens
// that begin or end every text are there.
func (t *Tokenizer) Encode(text string) []int32 {
	ids := t.encode(slices.Clone(t.before), text, true)
	return append(ids, t.after...)
}

func (t *Tokenizer) encode(ids []int32, text string, special bool) []int32 {
	if !utf8.ValidString(text) {
		text = strings.ToValidUTF8(text, "\uFFFD")
	}
	w := work{t: t, ids: ids}
	t.raw.cut(text, special, w.token, func(text string) {
		if t.nfc {
			text = normalize(text)
		}
		t.normalized.cut(text, special, w.token, func(text string) { w.split(text, t.splits) })
	})
	return w.ids
}

// work is what one text needs while it is encoded.
type work struct {
	t     *Tokenizer
	ids   []int32
	parts []part
	queue []candidate
}

func (w *work) token(id int32) { w.ids = append(w.ids, id) }

// split cuts text by the first of the splits, its pieces by the others, and encodes what results.
func (w *work) split(text string, splits []split) {
	if len(splits) == 0 {
		w.word(text)
		return
	}
	for len(text) > 0 {
		n := splits[0].next(text)
		w.split(text[:n], splits[1:])
		text = text[n:]
	}
}

// Decode gives the text of tokens. Special ones, and ids outside the vocabulary, are left out; bytes that are not UTF-8
// become U+FFFD.
func (t *Tokenizer) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		if t.Known(id) && !t.special[id] {
			b.WriteString(t.texts[id])
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// Token is one token as text for people: special ones by name.
func (t *Tokenizer) Token(id int32) string { return strings.ToValidUTF8(t.Text(id), "\uFFFD") }

// Text is the bytes of text that a token stands for, special ones their names; none for what is no token.
func (t *Tokenizer) Text(id int32) string {
	if !t.Known(id) {
		return ""
	}
	return t.texts[id]
}

// Known reports whether id is a token.
func (t *Tokenizer) Known(id int32) bool { return id >= 0 && int(id) < len(t.known) && t.known[id] }

// Added is the id of an added token, special or not.
func (t *Tokenizer) Added(name string) (id int32, ok bool) {
	id, ok = t.added[name]
	return id, ok
}

// IsSpecial reports whether id is a special token.
func (t *Tokenizer) IsSpecial(id int32) bool { return t.Known(id) && t.special[id] }

// VocabSize is one more than the largest id.
func (t *Tokenizer) VocabSize() int { return len(t.known) }

// ID is the SHA-256 of the tokenizer.json without space, in hex.
func (t *Tokenizer) ID() string { return t.id }
