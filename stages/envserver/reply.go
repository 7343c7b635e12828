package envserver

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference/render"
)

// A reply is what one model call returned.
type reply struct {
	node    int // its node
	message int // among the messages
	opening int // tokens of the generation prompt, at the start of the node
	tokens  []int32
	said    render.Answer
}

// text is the reply's tokens without the one that ends it.
func (r reply) text() []int32 {
	if r.said.Ended {
		return r.tokens[:len(r.tokens)-1]
	}
	return r.tokens
}

// reward gives the tokens of reply k the environment's rewards of its characters.
func (c *conversation) reward(k int, rewards env.CharRewards) error {
	if len(rewards) == 0 {
		return nil
	}
	r := c.replies[k]
	values, err := r.reward(c.renderer, rewards)
	if err != nil {
		return fmt.Errorf("reply %d: %w", k, err)
	}
	c.nodes[r.node].TokenRewards = values
	return nil
}

// reward spreads the rewards of the characters of the reply's content over its tokens. Tokens of what the environment does
// not see, reasoning and calls that stand apart, have none, but that the end of a call is the end of a reply that ends with it
// (env.Info.OneCall).
func (r reply) reward(renderer render.Renderer, rewards env.CharRewards) (schemas.Float32s, error) {
	chars, end := slices.Clone(rewards), rewards[len(rewards)-1]
	chars[len(chars)-1] = 0 // the end token is known here, and gets it below
	from, to := r.said.From, r.said.To
	values, err := chars.Tokens(r.said.Content, widths(renderer, r.tokens[from:to], r.said.Content))
	if err != nil {
		return nil, err
	}
	values = slices.Concat(make([]float64, from), values, make([]float64, len(r.tokens)-to))
	if last := len(r.tokens) - 1; r.said.Ended || len(r.said.Calls) > 0 && slices.Contains(renderer.CallStop(), r.tokens[last]) {
		values[last] = end
	}
	out := make([]float32, r.opening, r.opening+len(values))
	for _, v := range values {
		if math.IsNaN(v) || math.Abs(v) > math.MaxFloat32 {
			return nil, fmt.Errorf("a token's reward is %v", v)
		}
		out = append(out, float32(v))
	}
	return schemas.PackFloat32s(out), nil
}

// widths is the number of bytes of the content each token stands for; the first and the last may stand for more. Of tokens
// that share a character the last has it all; of those whose bytes are no UTF-8, which are one U+FFFD together, the first.
func widths(r render.Renderer, tokens []int32, content string) []int {
	out := make([]int, len(tokens))
	var text strings.Builder
	ends := make([]int, len(tokens)) // of the tokens in text
	for i, id := range tokens {
		text.WriteString(r.Text(id))
		ends[i] = text.Len()
	}
	at := -max(0, strings.Index(valid(text.String()), content)) // in content
	token, broken := 0, false
	for from, c := range text.String() {
		_, size := utf8.DecodeRuneInString(text.String()[from:])
		for ends[token] < from+size {
			token++
		}
		width, bad := size, c == utf8.RuneError && size == 1
		switch {
		case bad && broken:
			width = 0
		case bad:
			width = len("\uFFFD")
		}
		out[token] += max(0, min(at+width, len(content))-max(at, 0))
		at, broken = at+width, bad
	}
	return out
}
