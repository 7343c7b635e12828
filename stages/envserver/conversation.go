package envserver

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// A conversation is the message graph of one rollout: nodes whose tokens, joined from a root to a leaf, are what the policy
// saw and sampled. Every agent has a thread of its own, which is one chain that grows by appending (I7), unless a server says
// that it saw other tokens than it was asked to continue: then what it saw is a branch of its own. A message that no model
// call followed has no tokens, since no policy ever saw it.
type conversation struct {
	renderer render.Renderer
	tools    []render.Tool // that the policy was told of
	messages []env.Message // of all threads, in order, as the environment knows them
	nodes    []schemas.Node
	replies  []reply
	threads  map[string]*thread // by agent; "" where there is one
	now      *thread            // that is to speak
	// lowest and highest policy version among the sampled tokens; nil without any
	lowest, highest *int64
}

// A thread is the conversation of one agent. Its unseen nodes are the last of all while it is the one to speak.
type thread struct {
	agent   string
	leaf    int               // node that was seen or said last; -1 without any
	tokens  []int32           // from the root to the leaf
	answer  []int32           // that was sampled last; nil without any
	opened  []render.Rendered // what the first prompt shows; nil behind it
	waiting []render.Message  // what the next prompt shows behind an answer
	unseen  []int             // nodes behind the leaf, which have no tokens yet
}

// open begins the conversation of the first agent with a prompt and tells it of the tools, as every other agent will be.
func (c *conversation) open(messages []env.Message, tools []env.Tool) error {
	for _, t := range tools {
		c.tools = append(c.tools, render.Tool{Name: t.Name, Description: t.Description, Parameters: t.Schema})
	}
	return c.hear(messages)
}

// hear shows messages of the environment to the agent whose they are, which is then to speak. Without messages nothing
// changes. An error is the environment's.
func (c *conversation) hear(messages []env.Message) error {
	if len(messages) == 0 {
		return nil
	}
	shown := make([]render.Message, len(messages))
	for i, m := range messages {
		text, err := m.Text()
		if err != nil {
			return err
		}
		shown[i] = rendered(m, text)
	}
	agent := messages[0].Agent
	if c.now = c.threads[agent]; c.now != nil {
		c.now.waiting = append(c.now.waiting, shown...)
		for i, m := range messages {
			c.add(m, shown[i].Content)
		}
		return nil
	}
	if c.threads == nil {
		c.threads = map[string]*thread{}
	}
	opened, err := c.renderer.Begin(shown, c.tools)
	if err != nil {
		return err
	}
	c.now = &thread{agent: agent, leaf: -1, opened: opened}
	c.threads[agent] = c.now
	before := len(opened) - len(messages) // it may say something of its own first, and of tools most tell in the system message
	for i, o := range opened {
		m := env.Message{Role: env.Role(o.Role), Content: o.Content, Agent: agent}
		if i >= before {
			if m = messages[i-before]; o.Content != shown[i-before].Content {
				m.Content = o.Content
			}
		}
		c.add(m, o.Content)
	}
	return nil
}

// rendered is a message as renderers take it, with the text that is shown.
func rendered(m env.Message, text string) render.Message {
	out := render.Message{Role: valid(string(m.Role)), Content: valid(text), ToolCallID: valid(m.ToolCallID)}
	for _, t := range m.ToolCalls {
		out.ToolCalls = append(out.ToolCalls, render.ToolCall(t))
	}
	return out
}

// add appends a message of the environment to the thread that is to speak; shown is its text as the policy sees it.
func (c *conversation) add(m env.Message, shown string) {
	t := c.now
	parent := t.leaf
	if len(t.unseen) > 0 {
		parent = len(c.nodes) - 1
	}
	t.unseen = append(t.unseen, len(c.nodes))
	c.nodes = append(c.nodes, schemas.Node{
		Parent: parent, Agent: valid(t.agent), Role: valid(string(m.Role)), Content: valid(shown), Images: images(m.Images),
		ToolCalls: recorded(m.ToolCalls), ToolCallID: valid(m.ToolCallID),
	})
	c.messages = append(c.messages, m)
}

// A prompt is a sequence for the policy to continue.
type prompt struct {
	tokens  []int32
	opening int               // tokens of the generation prompt, at its end
	shown   []render.Rendered // the messages it shows for the first time
}

// prompt renders what is new for the agent that is to speak. The conversation is the same until say.
func (c *conversation) prompt() (prompt, error) {
	t := c.now
	p := prompt{tokens: t.tokens, shown: t.opened} // what is appended stands behind all that anyone has read
	if t.answer != nil {
		var err error
		if p.shown, err = c.renderer.Extend(t.answer, t.waiting); err != nil {
			return p, fmt.Errorf("messages behind reply %d: %w", len(c.replies)-1, err)
		}
	}
	for _, m := range p.shown {
		p.tokens = append(p.tokens, m.Tokens...)
	}
	opening := c.renderer.GenerationPrompt()
	p.opening, p.tokens = len(opening), append(p.tokens, opening...)
	t.tokens = p.tokens[:len(t.tokens)] // where these had to move, nothing holds the old ones while the policy thinks
	return p, nil
}

// say appends what the policy answered to a prompt, token by token as it was sampled, and gives what it means.
func (c *conversation) say(p prompt, a inference.Completion, temperature float64) render.Answer {
	t := c.now
	if a.Prompt == nil || slices.Equal(a.Prompt, p.tokens) {
		for k, i := range t.unseen {
			c.see(i, p.shown[k].Tokens)
			c.nodes[i].BodyFrom, c.nodes[i].BodyTo = p.shown[k].From, p.shown[k].To
		}
	} else {
		p = c.branch(a.Prompt)
	}
	last := t.leaf
	if n := len(t.unseen); n > 0 {
		last = t.unseen[n-1]
	}
	said := c.renderer.Parse(a.Tokens, len(c.tools) > 0)
	r := reply{node: len(c.nodes), message: len(c.messages), opening: p.opening, tokens: a.Tokens, said: said}
	tokens := append(p.tokens, a.Tokens...)
	own := tokens[len(p.tokens)-p.opening:]
	mask, logprobs := make([]byte, len(own)), make([]float32, p.opening, len(own))
	for i := p.opening; i < len(mask); i++ {
		mask[i] = 1
	}
	node := schemas.Node{
		Parent: last, Agent: valid(t.agent), Role: string(env.RoleAssistant), Content: valid(said.Content), Reasoning: valid(said.Reasoning),
		Temperature: temperature,
		TokenIDs:    schemas.PackInt32s(own),
		Mask:        mask,
		Logprobs:    schemas.PackFloat32s(append(logprobs, a.Logprobs...)),
		BodyFrom:    p.opening, BodyTo: p.opening + len(r.text()),
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
	*t = thread{agent: t.agent, leaf: len(c.nodes), tokens: tokens, answer: a.Tokens}
	c.nodes, c.replies = append(c.nodes, node), append(c.replies, r)
	c.messages = append(c.messages, env.Message{Role: env.RoleAssistant, Content: said.Content, Agent: t.agent})
	return said
}

// see gives a node its tokens, none of which was sampled.
func (c *conversation) see(node int, tokens []int32) {
	n := &c.nodes[node]
	n.TokenIDs, n.Mask, n.Logprobs = schemas.PackInt32s(tokens), zeros(len(tokens)), zeros(4*len(tokens))
}

// none is the mask and the log-probabilities of tokens that nobody sampled, which most tokens of most rollouts are: all nodes share
// it, and nothing writes to a node's tensors.
var none = make([]byte, 64<<10)

func zeros(n int) []byte {
	if n > len(none) {
		return make([]byte, n)
	}
	return none[:n:n]
}

// call records the tool calls of the last reply and returns it as a message.
func (c *conversation) call(calls []env.ToolCall) env.Message {
	m := &c.messages[len(c.messages)-1]
	m.ToolCalls = calls
	c.nodes[len(c.nodes)-1].ToolCalls = recorded(calls)
	return *m
}

// recorded are tool calls as traces have them.
func recorded(calls []env.ToolCall) (out []schemas.ToolCall) {
	for _, t := range calls {
		out = append(out, schemas.ToolCall{ID: valid(t.ID), Name: valid(t.Name), Arguments: valid(t.Arguments)})
	}
	return out
}

// images are images as traces have them.
func images(shown []env.Image) (out []schemas.Image) {
	for _, i := range shown {
		sum := sha256.Sum256(i.Data)
		out = append(out, schemas.Image{Mime: valid(i.MIME), Alt: valid(i.Alt), Data: i.Data, SHA256: hex.EncodeToString(sum[:])})
	}
	return out
}

// settle gives every branch of an agent the agent's own reward; of an agent that is not in totals that of the rollout holds.
func (c *conversation) settle(totals map[string]*float64) {
	inner := make([]bool, len(c.nodes))
	for _, n := range c.nodes {
		if n.Parent >= 0 {
			inner[n.Parent] = true
		}
	}
	for i := range c.nodes {
		if n := &c.nodes[i]; !inner[i] {
			n.Reward = totals[n.Agent]
		}
	}
}
