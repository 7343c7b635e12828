package render

import (
	"fmt"

	"github.com/prl-project/prl/stages/internal/bpe"
)

// tokenizer is what the formats of Hugging Face's tokenizers have in common.
type tokenizer struct {
	tok  *bpe.Tokenizer
	id   string
	stop []int32
}

// need checks that the tokenizer has the tokens of a format, and that no text becomes one.
func (t *tokenizer) need(names ...string) error {
	for _, name := range names {
		switch id, ok := t.tok.Added(name); {
		case !ok:
			return fmt.Errorf("the tokenizer has no token %s", name)
		case !t.tok.IsSpecial(id):
			return fmt.Errorf("the tokenizer's token %s is not special: a message with that text would have the token", name)
		}
	}
	return nil
}

// have are those of some tokens that the tokenizer has.
func (t *tokenizer) have(names ...string) []int32 {
	var ids []int32
	for _, name := range names {
		if id, ok := t.tok.Added(name); ok {
			ids = append(ids, id)
		}
	}
	return ids
}

func (t *tokenizer) Stop() []int32                { return t.stop }
func (t *tokenizer) Encode(text string) []int32   { return t.tok.Encode(text) }
func (t *tokenizer) Decode(tokens []int32) string { return t.tok.Decode(tokens) }
func (t *tokenizer) Token(id int32) string        { return t.tok.Token(id) }
func (t *tokenizer) VocabSize() int               { return t.tok.VocabSize() }
func (t *tokenizer) ID() string                   { return t.id }
