package envserver

import (
	"fmt"
	"slices"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// A conversation is the message graph of one rollout: nodes whose tokens, joined from the root to a leaf, are what the
// policy saw and sampled. It is one chain that grows by appending (I7), unless a server says that it saw other tokens than
// it was asked to continue: then what it saw is a branch of its own. A message that no model call followed has no tokens,
// since no policy ever saw it.
type conversation struct {
	renderer render.Renderer
	tools    bool // the policy was told of tools
	messages []env.Message
	nodes    []schemas.Node
	leaf     int     // node that was seen or said last; -1 without any
	tokens   []int32 // from the root to the leaf
	unseen   []int   // nodes behind the leaf, which have no tokens yet
	opened   []render.Rendered
	replies  []reply
	// lowest and highest policy version among the sampled tokens; nil without any
	lowest, highest *int64
}

// open begins the conversation. The messages may come to be others than were asked for: of tools most renderers tell in
// the system message.
func (c *conversation) open(messages []env.Message, tools []env.Tool) error {
	told := make([]render.Tool, len(tools))
	for i, t := range tools {
		told[i] = render.Tool{Name: t.Name, Description: t.Description, Parameters: t.Schema}
	}
	asked := make([]render.Message, len(messages))
	for i, m := range messages {
		asked[i] = rendered(m)
	}
	opened, err := c.renderer.Begin(asked, told)
	if err != nil {
		return err
	}
	c.opened, c.tools, c.leaf = opened, len(tools) > 0, -1
	for _, o := range opened {
		m := env.Message{Role: env.Role(o.Role), Content: o.Content, ToolCallID: o.ToolCallID}
		for _, call := range o.ToolCalls {
			m.ToolCalls = append(m.ToolCalls, env.ToolCall(call))
		}
		c.add(m)
	}
	return nil
}

// rendered is a message as renderers take it.
func rendered(m env.Message) render.Message {
	out := render.Message{Role: valid(string(m.Role)), Content: valid(m.Content), ToolCallID: valid(m.ToolCallID)}
	for _, t := range m.ToolCalls {
		out.ToolCalls = append(out.ToolCalls, render.ToolCall(t))
	}
	return out
}

// add appends a message of the environment.
func (c *conversation) add(m env.Message) {
	parent := c.leaf
	if len(c.unseen) > 0 {
		parent = len(c.nodes) - 1
	}
	c.unseen = append(c.unseen, len(c.nodes))
	c.nodes = append(c.nodes, schemas.Node{
		Parent: parent, Role: valid(string(m.Role)), Content: valid(m.Content), ToolCalls: recorded(m.ToolCalls), ToolCallID: valid(m.ToolCallID),
	})
	c.messages = append(c.messages, m)
}

// A prompt is a sequence for the policy to continue.
type prompt struct {
	tokens  []int32
	opening int               // tokens of the generation prompt, at its end
	shown   []render.Rendered // the messages it shows for the first time
}

// prompt renders what is new. Nothing changes before say.
func (c *conversation) prompt() (prompt, error) {
	p := prompt{tokens: slices.Clone(c.tokens), shown: c.opened}
	if n := len(c.replies); n > 0 {
		var messages []render.Message
		for _, m := range c.messages[len(c.messages)-len(c.unseen):] {
			messages = append(messages, rendered(m))
		}
		var err error
		if p.shown, err = c.renderer.Extend(c.replies[n-1].tokens, messages); err != nil {
			return p, fmt.Errorf("messages behind reply %d: %w", n-1, err)
		}
	}
	for _, m := range p.shown {
		p.tokens = append(p.tokens, m.Tokens...)
	}
	opening := c.renderer.GenerationPrompt()
	p.opening, p.tokens = len(opening), append(p.tokens, opening...)
	return p, nil
}

// say appends what the policy answered to a prompt, token by token as it was sampled, and gives what it means.
func (c *conversation) say(p prompt, a inference.Completion, temperature float64) render.Answer {
	if a.Prompt == nil || slices.Equal(a.Prompt, p.tokens) {
		for k, i := range c.unseen {
			c.see(i, p.shown[k].Tokens)
			c.nodes[i].BodyFrom, c.nodes[i].BodyTo = p.shown[k].From, p.shown[k].To
		}
	} else {
		p = c.branch(a.Prompt)
	}
	c.leaf, c.unseen, c.opened = c.unseen[len(c.unseen)-1], nil, nil
	said := c.renderer.Parse(a.Tokens, c.tools)
	r := reply{node: len(c.nodes), opening: p.opening, tokens: a.Tokens, said: said}
	opening := p.tokens[len(p.tokens)-p.opening:]
	node := schemas.Node{
		Parent: c.leaf, Role: string(env.RoleAssistant), Content: valid(said.Content), Reasoning: valid(said.Reasoning), Temperature: temperature,
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
	c.leaf = len(c.nodes)
	c.nodes, c.replies = append(c.nodes, node), append(c.replies, r)
	c.messages = append(c.messages, env.Assistant(said.Content))
	c.tokens = slices.Concat(p.tokens, a.Tokens)
	return said
}

// see gives a node its tokens, none of which was sampled.
func (c *conversation) see(node int, tokens []int32) {
	n := &c.nodes[node]
	n.TokenIDs, n.Mask, n.Logprobs = schemas.PackInt32s(tokens), make([]byte, len(tokens)), make([]byte, 4*len(tokens))
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
