package envserver

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// A conversation is the message graph of one rollout: a chain of nodes whose tokens, joined, are what the policy saw
// and sampled. A message that no model call followed has no tokens, since no policy ever saw it.
type conversation struct {
	renderer Renderer
	messages []env.Message
	nodes    []schemas.Node
	tokens   []int32 // of all nodes
	unseen   []int   // nodes without tokens
	replies  []reply
	// lowest and highest policy version among the sampled tokens; nil without any
	lowest, highest *int64
}

// A reply is what one model call returned.
type reply struct {
	node    int
	opening int // tokens of the generation prompt, at the start of the node
	tokens  []int32
	ended   bool // the last token ends the message
	content string
}

// add appends a message of the environment.
func (c *conversation) add(m env.Message) {
	c.unseen = append(c.unseen, len(c.nodes))
	c.nodes = append(c.nodes, schemas.Node{Parent: len(c.nodes) - 1, Role: valid(string(m.Role)), Content: valid(m.Content), ToolCallID: valid(m.ToolCallID)})
	c.messages = append(c.messages, m)
}

// A prompt is a sequence for the policy to continue.
type prompt struct {
	tokens  []int32
	opening int       // tokens of the generation prompt, at its end
	shown   [][]int32 // of the messages it shows for the first time
}

// prompt renders what is new. Nothing changes before say.
func (c *conversation) prompt() (prompt, error) {
	p := prompt{tokens: slices.Clone(c.tokens)}
	for _, i := range c.unseen {
		t, err := c.renderer.RenderMessage(c.nodes[i].Role, c.nodes[i].Content)
		if err != nil {
			return p, fmt.Errorf("message %d: %w", i, err)
		}
		p.shown, p.tokens = append(p.shown, t), append(p.tokens, t...)
	}
	opening := c.renderer.GenerationPrompt()
	p.opening, p.tokens = len(opening), append(p.tokens, opening...)
	return p, nil
}

// say appends what the policy answered to a prompt, token by token as it was sampled, and returns its text.
func (c *conversation) say(p prompt, a inference.Completion, temperature float64) string {
	for k, i := range c.unseen {
		n := len(p.shown[k])
		c.nodes[i].TokenIDs = schemas.PackInt32s(p.shown[k])
		c.nodes[i].Mask, c.nodes[i].Logprobs = make([]byte, n), make([]byte, 4*n)
		if b, ok := c.renderer.(Bounder); ok {
			c.nodes[i].BodyFrom, c.nodes[i].BodyTo = b.Bounds(p.shown[k])
		}
	}
	c.unseen = nil
	r := reply{node: len(c.nodes), opening: p.opening, tokens: a.Tokens, ended: a.FinishReason == inference.FinishStop}
	r.content = c.renderer.Decode(r.text())
	opening := p.tokens[len(p.tokens)-p.opening:]
	node := schemas.Node{
		Parent: len(c.nodes) - 1, Role: string(env.RoleAssistant), Content: valid(r.content), Temperature: temperature,
		TokenIDs: schemas.PackInt32s(slices.Concat(opening, a.Tokens)),
		Mask:     slices.Concat(make([]byte, p.opening), slices.Repeat([]byte{1}, len(a.Tokens))),
		Logprobs: schemas.PackFloat32s(slices.Concat(make([]float32, p.opening), a.Logprobs)),
		BodyFrom: p.opening, BodyTo: p.opening + len(r.text()),
	}
	for _, v := range a.Versions {
		node.Versions = append(node.Versions, schemas.VersionRun{Offset: p.opening + v.Offset, Version: v.Version})
		if version := v.Version; c.lowest == nil || version < *c.lowest {
			c.lowest = &version
		}
		if version := v.Version; c.highest == nil || version > *c.highest {
			c.highest = &version
		}
	}
	c.nodes, c.replies = append(c.nodes, node), append(c.replies, r)
	c.messages = append(c.messages, env.Assistant(r.content))
	c.tokens = append(p.tokens, a.Tokens...)
	return r.content
}

// call records the tool calls of the last reply and returns it as a message.
func (c *conversation) call(calls []env.ToolCall) env.Message {
	m := &c.messages[len(c.messages)-1]
	m.ToolCalls = calls
	node := &c.nodes[len(c.nodes)-1]
	for _, t := range calls {
		node.ToolCalls = append(node.ToolCalls, schemas.ToolCall{ID: t.ID, Name: valid(t.Name), Arguments: valid(t.Arguments)})
	}
	return *m
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

// reward spreads the rewards of the reply's characters over its tokens.
func (r reply) reward(renderer Renderer, rewards env.CharRewards) (schemas.Float32s, error) {
	text := r.text()
	chars, end := slices.Clone(rewards), rewards[len(rewards)-1]
	chars[len(chars)-1] = 0 // the end token is known here, and gets it below
	values, err := chars.Tokens(r.content, widths(renderer, text, r.content))
	if err != nil {
		return nil, err
	}
	if r.ended {
		values = append(values, end)
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

// text is the tokens that stand for the reply's text.
func (r reply) text() []int32 {
	if r.ended {
		return r.tokens[:len(r.tokens)-1]
	}
	return r.tokens
}

// widths is the number of bytes of the content each token stands for. Of tokens that share a character the last has it all.
func widths(r Renderer, tokens []int32, content string) []int {
	out := make([]int, len(tokens))
	at := 0
	for i := range tokens {
		if d := r.Decode(tokens[:i+1]); len(d) > at && strings.HasPrefix(content, d) {
			out[i], at = len(d)-at, len(d)
		}
	}
	return out
}
