package lm

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// The special tokens have the first ids of every vocabulary. Text never encodes to one of them, so no message can forge
// the end of another or a role; they do mean what they say when the policy samples them.
const (
	tokenPad int32 = iota
	tokenUnk
	tokenBOS
	tokenEOS
	tokenSystem
	tokenUser
	tokenAssistant
	tokenTool
	numSpecial
)

var specialTokens = [numSpecial]string{"<pad>", "<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>"}

// maxAlphabet bounds the characters of a vocabulary.
const maxAlphabet = 1 << 16

// Tokenizer has one token for each character of an alphabet, or for each of the 256 bytes, and the special tokens. It is
// immutable.
type Tokenizer struct {
	alphabet []rune // empty: bytes
	ids      map[rune]int32
}

// NewTokenizer makes a tokenizer of the distinct characters of alphabet, in its order; an empty alphabet stands for the
// 256 bytes.
func NewTokenizer(alphabet string) (*Tokenizer, error) {
	if !utf8.ValidString(alphabet) {
		return nil, fmt.Errorf("tokenizer alphabet is not valid UTF-8")
	}
	t := &Tokenizer{alphabet: []rune(alphabet), ids: map[rune]int32{}}
	if len(t.alphabet) > maxAlphabet {
		return nil, fmt.Errorf("tokenizer alphabet has %d characters: at most %d are allowed", len(t.alphabet), maxAlphabet)
	}
	for i, r := range t.alphabet {
		if _, twice := t.ids[r]; twice {
			return nil, fmt.Errorf("tokenizer alphabet has %q twice", r)
		}
		t.ids[r] = numSpecial + int32(i)
	}
	return t, nil
}

// Alphabet is the string the tokenizer was made from.
func (t *Tokenizer) Alphabet() string { return string(t.alphabet) }

// VocabSize is the number of tokens, special ones included.
func (t *Tokenizer) VocabSize() int {
	if len(t.alphabet) == 0 {
		return int(numSpecial) + 256
	}
	return int(numSpecial) + len(t.alphabet)
}

// EOS is the id of </s>, which ends every message.
func (t *Tokenizer) EOS() int32 { return tokenEOS }

// Pad is the id of <pad>.
func (t *Tokenizer) Pad() int32 { return tokenPad }

// IsSpecial says whether id is one of the special tokens.
func (t *Tokenizer) IsSpecial(id int32) bool { return id >= 0 && id < numSpecial }

// Encode gives the tokens of text; a character outside the alphabet is <unk>.
func (t *Tokenizer) Encode(text string) []int32 {
	return t.appendText(make([]int32, 0, len(text)), text)
}

func (t *Tokenizer) appendText(ids []int32, text string) []int32 {
	if len(t.alphabet) == 0 {
		for i := range len(text) {
			ids = append(ids, numSpecial+int32(text[i]))
		}
		return ids
	}
	for _, r := range text {
		id, ok := t.ids[r]
		if !ok {
			id = tokenUnk
		}
		ids = append(ids, id)
	}
	return ids
}

// Decode gives the text of tokens. Special tokens and ids outside the vocabulary are left out; bytes that are not UTF-8
// become U+FFFD.
func (t *Tokenizer) Decode(ids []int32) string {
	var b strings.Builder
	for _, id := range ids {
		switch i := int(id) - int(numSpecial); {
		case i < 0 || int(id) >= t.VocabSize():
		case len(t.alphabet) == 0:
			b.WriteByte(byte(i))
		default:
			b.WriteRune(t.alphabet[i])
		}
	}
	return strings.ToValidUTF8(b.String(), "\uFFFD")
}

// Token is one token as text for people: special tokens by name.
func (t *Tokenizer) Token(id int32) string {
	if t.IsSpecial(id) {
		return specialTokens[id]
	}
	return t.Decode([]int32{id})
}

// roleToken is the token that opens a message of the role.
func roleToken(role string) (int32, bool) {
	for id := tokenSystem; id <= tokenTool; id++ {
		if specialTokens[id] == "<|"+role+"|>" {
			return id, true
		}
	}
	return 0, false
}

// RenderMessage gives the tokens of one whole message: the role's token, the content, </s>. A conversation is the
// concatenation of its messages, so that it grows by appending: what the policy sampled (which ends with </s> unless it
// was cut short) stays as it is, and only new messages are rendered.
func (t *Tokenizer) RenderMessage(role, content string) ([]int32, error) {
	id, ok := roleToken(role)
	if !ok {
		return nil, fmt.Errorf("render message: role %q is none of system, user, assistant, tool", role)
	}
	ids := append(make([]int32, 0, len(content)+2), id)
	return append(t.appendText(ids, content), tokenEOS), nil
}

// GenerationPrompt is what comes before an answer of the policy: the assistant's role token.
func (t *Tokenizer) GenerationPrompt() []int32 { return []int32{tokenAssistant} }
