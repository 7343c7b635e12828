package inference

import (
	"bytes"
	"encoding/json"
	"slices"
	"strconv"
)

// read decodes a reply.
func (r *generateReply) read(data []byte) error {
	if quick, ok := readReply(data); ok {
		*r = quick
		return nil
	}
	return json.Unmarshal(data, r)
}

// readReply reads a completion as this package's servers write it, in a fraction of the time that encoding/json takes and without an
// allocation for each token: a reply has a name and a number for every one. It is not ok with anything else, which may be JSON, too.
func readReply(data []byte) (reply generateReply, ok bool) {
	p := &parser{rest: bytes.TrimSuffix(data, []byte("\n"))}
	p.object(func(key []byte) {
		switch string(key) {
		case "request_id":
			reply.RequestID = string(p.text())
		case "prompt_token_ids":
			reply.PromptTokenIDs = p.tokens()
		case "choices":
			reply.Choices = list(p, 1, p.choice)
		default:
			p.fail()
		}
	})
	return reply, !p.failed && len(p.rest) == 0
}

func (p *parser) choice() (c generateChoice) {
	p.object(func(key []byte) {
		switch string(key) {
		case "index":
			c.Index = int(p.integer(64))
		case "token_ids":
			c.TokenIDs = p.tokens()
		case "finish_reason":
			c.FinishReason = string(p.text())
		case "logprobs":
			c.Logprobs = &logprobs{}
			p.object(func(key []byte) {
				if string(key) != "content" {
					p.fail()
				}
				c.Logprobs.Content = p.logprobs(len(c.TokenIDs))
			})
		case "policy_versions":
			c.Versions = list(p, 1, p.version)
		default:
			p.fail()
		}
	})
	return c
}

func (p *parser) version() (v versionSpan) {
	p.object(func(key []byte) {
		switch string(key) {
		case "offset":
			v.Offset = int(p.integer(64))
		case "version":
			v.Version = p.integer(64)
		default:
			p.fail()
		}
	})
	return v
}

func (p *parser) tokens() []int32 {
	text, _, _ := bytes.Cut(p.rest, []byte("]"))
	return list(p, bytes.Count(text, []byte(","))+1, func() int32 { return int32(p.integer(32)) })
}

// shortestLogprob is what that of one token takes, at least.
const shortestLogprob = len(`{"token":"token_id:0"}`)

// logprobs are those of some number of tokens, which are named.
func (p *parser) logprobs(n int) []tokenLogprob {
	n = min(n, len(p.rest)/shortestLogprob)
	ids := make([]int32, 0, n)
	return list(p, n, func() (l tokenLogprob) {
		named := false
		p.object(func(key []byte) {
			switch string(key) {
			case "token":
				name, ok := bytes.CutPrefix(p.text(), []byte(tokenPrefix))
				id := parser{rest: name}
				ids = append(ids, int32(id.integer(32)))
				if named = true; !ok || id.failed || len(id.rest) > 0 || name[0] == '-' { // -0 is no name of 0
					p.fail()
				}
			case "logprob":
				l.Logprob = p.float()
			default:
				p.fail()
			}
		})
		if !named {
			p.fail()
			return l
		}
		l.TokenID = &ids[len(ids)-1]
		return l
	})
}

// A parser reads JSON without space and without escapes, and fails at any other.
type parser struct {
	rest   []byte
	failed bool
}

// fail makes it read nothing more.
func (p *parser) fail() { p.failed, p.rest = true, nil }

// skip reads a character, if it is the next.
func (p *parser) skip(c byte) bool {
	if len(p.rest) == 0 || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

func (p *parser) want(c byte) {
	if !p.skip(c) {
		p.fail()
	}
}

// maxFields is more than any object of a reply has.
const maxFields = 8

// object reads one whose values field reads. A field that comes twice is for encoding/json, which merges them.
func (p *parser) object(field func(key []byte)) {
	var seen [maxFields][]byte
	p.want('{')
	for n := 0; !p.failed && !p.skip('}'); n++ {
		if n > 0 {
			p.want(',')
		}
		key := p.text()
		p.want(':')
		if n == maxFields || slices.ContainsFunc(seen[:n], func(k []byte) bool { return bytes.Equal(k, key) }) {
			p.fail()
			return
		}
		seen[n] = key
		field(key)
	}
}

// list reads one of what item reads, of about n.
func list[T any](p *parser, n int, item func() T) []T {
	p.want('[')
	all := make([]T, 0, n)
	for !p.failed && !p.skip(']') {
		if len(all) > 0 {
			p.want(',')
		}
		all = append(all, item())
	}
	return all
}

// text reads printable ASCII without escapes.
func (p *parser) text() []byte {
	p.want('"')
	for i, c := range p.rest {
		switch {
		case c == '"':
			text := p.rest[:i]
			p.rest = p.rest[i+1:]
			return text
		case c < ' ' || c > '~' || c == '\\':
			p.fail()
			return nil
		}
	}
	p.fail()
	return nil
}

// digits reads at least one, and none behind a zero where it begins a number.
func (p *parser) digits(begins bool) {
	n := 0
	for n < len(p.rest) && p.rest[n] >= '0' && p.rest[n] <= '9' {
		n++
	}
	if n == 0 || begins && n > 1 && p.rest[0] == '0' {
		p.fail()
		return
	}
	p.rest = p.rest[n:]
}

func (p *parser) integer(bits int) int64 {
	start := p.rest
	p.skip('-')
	p.digits(true)
	v, err := strconv.ParseInt(string(start[:len(start)-len(p.rest)]), 10, bits)
	if err != nil {
		p.fail()
	}
	return v
}

func (p *parser) float() float32 {
	start := p.rest
	p.skip('-')
	p.digits(true)
	if p.skip('.') {
		p.digits(false)
	}
	if p.skip('e') || p.skip('E') {
		if !p.skip('+') {
			p.skip('-')
		}
		p.digits(false)
	}
	v, err := strconv.ParseFloat(string(start[:len(start)-len(p.rest)]), 32)
	if err != nil {
		p.fail()
	}
	return float32(v)
}
