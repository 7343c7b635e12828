package inference

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
)

// A question is the JSON of a generateRequest whose tokens become text as it is sent. Thousands of calls wait at once for their
// answers, each of which would otherwise have its text, as large as its tokens, for so long.
type question struct {
	head, tail []byte // before and behind the tokens
	tokens     []int32
}

func newQuestion(q generateRequest) (question, error) {
	tokens := q.TokenIDs
	q.TokenIDs = []int32{}
	text, err := json.Marshal(q)
	if err != nil {
		return question{}, fmt.Errorf("encode a request: %w", err)
	}
	const list = `"token_ids":[` // the first: in a text the quotes would be escaped
	at := bytes.Index(text, []byte(list)) + len(list)
	return question{text[:at], text[at:], tokens}, nil
}

// length is that of the JSON in bytes.
func (q question) length() int64 {
	n := len(q.head) + len(q.tail) + max(len(q.tokens)-1, 0)
	var digits [12]byte
	for _, id := range q.tokens {
		n += len(strconv.AppendInt(digits[:0], int64(id), 10))
	}
	return int64(n)
}

// body reads the JSON from its start.
func (q question) body() io.ReadCloser { return &questionBody{question: q, rest: q.head} }

type questionBody struct {
	question
	rest  []byte // that was begun
	next  int    // token
	ended bool   // the rest is the tail
	token [12]byte
}

func (b *questionBody) Read(p []byte) (n int, err error) {
	for n < len(p) {
		if len(b.rest) == 0 && !b.more() {
			return n, io.EOF
		}
		k := copy(p[n:], b.rest)
		n, b.rest = n+k, b.rest[k:]
	}
	return n, nil
}

// more begins the next token, or the tail; false behind it.
func (b *questionBody) more() bool {
	switch {
	case b.ended:
		return false
	case b.next == len(b.tokens):
		b.rest, b.ended = b.tail, true
	default:
		text := b.token[:0]
		if b.next > 0 {
			text = append(text, ',')
		}
		b.rest = strconv.AppendInt(text, int64(b.tokens[b.next]), 10)
		b.next++
	}
	return true
}

func (b *questionBody) Close() error { return nil }
