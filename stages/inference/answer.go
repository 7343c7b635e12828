package inference

import (
	"context"
	"slices"
	"strings"
)

// answer is one choice on its way: what was sampled for it, with the text that it stands for, up to where it ends.
type answer struct {
	index   int
	sample  func(context.Context, Request) (Completion, error)
	request Request
	named   []int32 // of the stop tokens, those that the client named
	text    text
	out     Completion
	said    strings.Builder // the text so far
	reason  any             // what ended it, where the client named that: a stop string, or a token; else nil
}

// piece is what an answer grew by: tokens from an offset on, and what is new of the text.
type piece struct {
	*answer
	from int
	text string
}

// whole is all of an answer as one piece.
func (a *answer) whole() piece { return piece{a, 0, a.said.String()} }

func (p piece) tokens() []int32 { return p.out.Tokens[p.from:] }

// top are the most probable tokens at the place of the piece's token i; none where nobody asked for them.
func (p piece) top(i int) []TopLogprob {
	if p.out.Top == nil {
		return nil
	}
	return p.out.Top[p.from+i]
}

// finish is why the answer is over; nil where it goes on.
func (p piece) finish() *string {
	if p.out.FinishReason == "" {
		return nil
	}
	return &p.out.FinishReason
}

// versions are the runs that begin in the piece.
func (p piece) versions() []versionSpan {
	spans := []versionSpan{}
	for _, v := range p.out.Versions {
		if v.Offset >= p.from {
			spans = append(spans, versionSpan(v))
		}
	}
	return spans
}

// take takes in what is new in a completion, up to where the answer ends: behind the token that completes a stop string, or
// that stops by itself. What a backend samples beyond that counts for nothing.
func (a *answer) take(c Completion) piece {
	p := piece{answer: a, from: len(a.out.Tokens)}
	to, said := p.from, a.said.Len()
	for ; to < len(c.Tokens) && !a.text.ended; to++ {
		if slices.Contains(a.request.StopTokens, c.Tokens[to]) {
			a.said.WriteString(a.text.stopAt(c.Tokens[to]))
		} else {
			a.said.WriteString(a.text.add(c.Tokens[to]))
		}
	}
	a.out = c
	a.out.Tokens, a.out.Logprobs = c.Tokens[:to], c.Logprobs[:to]
	if c.Top != nil {
		a.out.Top = c.Top[:to]
	}
	n := len(c.Versions)
	for n > 0 && c.Versions[n-1].Offset >= to {
		n--
	}
	a.out.Versions = c.Versions[:n]
	p.text = a.said.String()[said:]
	return p
}

// end says why the answer is over, and completes its last piece.
func (a *answer) end(p piece, reason string) piece {
	rest := a.text.end()
	a.said.WriteString(rest)
	p.text += rest
	a.out.FinishReason = reason
	n := len(a.out.Tokens)
	switch {
	case a.text.found != "":
		a.out.FinishReason, a.reason = FinishStop, a.text.found
	case n > 0 && slices.Contains(a.named, a.out.Tokens[n-1]):
		a.reason = a.out.Tokens[n-1]
	}
	return p
}

// speak lets the answer be sampled. emit, if there is one, is given every piece, the last of which says why it is the last;
// where it fails, so does speak.
func (a *answer) speak(ctx context.Context, emit func(piece) error) error {
	r := a.request
	var last piece
	var failed error
	if emit != nil || len(a.text.stop) > 0 {
		r.OnTokens = func(c Completion) bool {
			p := a.take(c)
			if a.text.ended {
				last = p
				return false
			}
			if emit != nil {
				failed = emit(p)
			}
			return failed == nil
		}
	}
	c, err := a.sample(ctx, r)
	switch {
	case err != nil:
		return err
	case failed != nil:
		return failed
	case last.answer == nil:
		last = a.take(c)
	}
	last = a.end(last, c.FinishReason)
	if emit == nil {
		return nil
	}
	return emit(last)
}
