package render

import "github.com/prl-project/prl/stages/internal/bpe"

// A writer makes the tokens of one message: markers that are tokens, and text between them, which is encoded in one piece
// whether it is the template's or the message's.
type writer struct {
	tok      *bpe.Tokenizer
	out      Rendered
	text     []byte // not encoded yet
	from, to int    // places in text where the message's own begins and ends; -1: not in text
}

func newWriter(tok *bpe.Tokenizer, m Message, lead []int32) *writer {
	return &writer{tok: tok, out: Rendered{Message: m, Tokens: lead}, from: -1, to: -1}
}

// marker writes a token of the template; a tokenizer that lacks it spells it.
func (w *writer) marker(name string) *writer {
	id, ok := w.tok.Added(name)
	if !ok {
		return w.string(name)
	}
	w.flush()
	w.out.Tokens = append(w.out.Tokens, id)
	return w
}

func (w *writer) string(text string) *writer {
	w.text = append(w.text, text...)
	return w
}

// begin and end stand around what is the message's own.
func (w *writer) begin() *writer { w.from = len(w.text); return w }
func (w *writer) end() *writer   { w.to = len(w.text); return w }

// own writes the message's own text.
func (w *writer) own(text string) *writer { return w.begin().string(text).end() }

// flush encodes the text. The message's own are the tokens that hold any of it. What the template writes around it is
// ASCII, which normalization leaves as it is: so the places in the text are counted from the end that they are next to.
func (w *writer) flush() {
	start := len(w.out.Tokens)
	w.out.Tokens = w.tok.AppendText(w.out.Tokens, string(w.text))
	tokens, length := w.out.Tokens[start:], 0
	for _, id := range tokens {
		length += len(w.tok.Text(id))
	}
	before, behind := 0, 0 // tokens
	place, to := 0, length-(len(w.text)-w.to)
	for i, id := range tokens {
		if place < to {
			behind = i + 1
		}
		if place += len(w.tok.Text(id)); place <= w.from {
			before = i + 1
		}
	}
	if w.from >= 0 {
		w.out.From = start + before
	}
	if w.to >= 0 {
		w.out.To = start + behind
	}
	if w.from >= 0 && w.from == w.to {
		w.out.To = w.out.From
	}
	w.text, w.from, w.to = w.text[:0], -1, -1
}

func (w *writer) rendered() Rendered {
	w.flush()
	return w.out
}
