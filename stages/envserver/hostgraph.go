package envserver

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// A hostGraph takes what a host asks into a conversation. A host says the whole history with every call. Where that repeats
// what one of its calls said and was answered, the call goes on there: tokens are appended, and those that stand never change
// (I7). Anything else, a history that was rewritten or another conversation beside, begins at a root of its own, or shares
// the nodes at its beginning whose tokens are the same. Only calls that were answered leave anything.
type hostGraph struct {
	talk  *conversation
	first []*point // the answers to histories without answers of the policy
}

// A point is an answer from which a conversation can go on.
type point struct {
	thread
	tools string           // that the policy was told of
	asked []render.Message // since the point before
	said  render.Message   // as the host got it
	taken int              // how often it was gone on from
	next  []*point
}

// A hostCall is a call as it is answered.
type hostCall struct {
	prompt
	from     *point // nil at a root
	tools    []render.Tool
	messages []render.Message // since then; of a prompt of tokens nil
}

// begin renders a call. An error is the host's.
func (g *hostGraph) begin(a inference.Ask) (c hostCall, err error) {
	r := g.talk.renderer
	c.tools = a.Tools
	opening := r.GenerationPrompt()
	if a.Messages == nil {
		c.tokens = a.Request.Tokens
		rest := c.tokens
		if n := len(rest) - len(opening); n >= 0 && slices.Equal(rest[n:], opening) {
			rest, c.opening = rest[:n], len(opening)
		}
		if len(rest) > 0 {
			c.shown = []render.Rendered{{Message: render.Message{Role: string(env.RoleUser), Content: r.Decode(rest)}, Tokens: rest}}
		}
		return c, nil
	}
	if c.from, c.messages = deepest(g.first, a.Messages, told(a.Tools)); c.from != nil {
		c.from.taken++
		c.tokens = slices.Clone(c.from.tokens)
		c.shown, err = r.Extend(c.from.answer, c.messages)
	} else {
		c.messages = a.Messages
		c.shown, err = r.Begin(c.messages, c.tools)
	}
	for _, m := range c.shown {
		c.tokens = append(c.tokens, m.Tokens...)
	}
	c.opening, c.tokens = len(opening), append(c.tokens, opening...)
	return c, err
}

// end records what the policy said to a call; m is the message that the host gets, nil where it gets tokens.
func (g *hostGraph) end(c hostCall, a inference.Completion, m *render.Message, temperature float64) {
	t := &thread{leaf: -1}
	if c.from != nil {
		t.leaf = c.from.leaf
	}
	switch {
	case a.Prompt != nil && !slices.Equal(a.Prompt, c.tokens):
		if len(c.shown) == 0 {
			c.shown = []render.Rendered{{Message: render.Message{Role: string(env.RoleUser)}}} // for what was seen
		}
	case c.messages == nil:
		g.shareTokens(t, &c)
	default:
		g.shareMessages(t, &c)
	}
	g.talk.now, g.talk.tools = t, c.tools
	for _, o := range c.shown {
		g.talk.add(messageOf(o.Message), o.Content)
	}
	said := g.talk.say(c.prompt, a, temperature)
	if m == nil {
		g.talk.call(messageOf(render.Message{ToolCalls: called(said)}).ToolCalls)
		return
	}
	n := &g.talk.nodes[t.leaf]
	n.Content, n.Reasoning = valid(m.Content), valid(m.Reasoning)
	g.talk.call(messageOf(*m).ToolCalls)
	p := &point{thread: *t, tools: told(c.tools), asked: c.messages, said: *m}
	if c.from == nil {
		g.first = append(g.first, p)
	} else {
		c.from.next = append(c.from.next, p)
	}
}

// shareMessages moves the thread along nodes that are what the call shows first.
func (g *hostGraph) shareMessages(t *thread, c *hostCall) {
	for len(c.shown) > 0 {
		o := c.shown[0]
		ids := schemas.PackInt32s(o.Tokens)
		i := g.child(t.leaf, func(n schemas.Node) bool {
			return bytes.Equal(n.TokenIDs, ids) && n.Role == valid(o.Role) && n.Content == valid(o.Content) && n.ToolCallID == valid(o.ToolCallID) &&
				slices.Equal(n.ToolCalls, recorded(messageOf(o.Message).ToolCalls)) && !slices.Contains(n.Mask, 1)
		})
		if i < 0 {
			return
		}
		t.leaf, c.shown = i, c.shown[1:]
	}
}

// shareTokens moves the thread along nodes whose tokens, answers included, the prompt begins with.
func (g *hostGraph) shareTokens(t *thread, c *hostCall) {
	for len(c.shown) > 0 {
		rest := c.shown[0].Tokens
		ids := schemas.PackInt32s(rest)
		i := g.child(t.leaf, func(n schemas.Node) bool { return len(n.TokenIDs) > 0 && bytes.HasPrefix(ids, n.TokenIDs) })
		if i < 0 {
			return
		}
		t.leaf, rest = i, rest[g.talk.nodes[i].TokenIDs.Len():]
		if c.shown = nil; len(rest) > 0 {
			c.shown = []render.Rendered{{Message: render.Message{Role: string(env.RoleUser), Content: g.talk.renderer.Decode(rest)}, Tokens: rest}}
		}
	}
}

// child is the first node below a parent that is what is looked for, or -1.
func (g *hostGraph) child(parent int, is func(schemas.Node) bool) int {
	return slices.IndexFunc(g.talk.nodes, func(n schemas.Node) bool { return n.Parent == parent && is(n) })
}

// deepest is the point furthest on whose history the messages begin with, and the messages behind it, of which there is one at
// least; nil if there is none. Of several, which were told and said the same, it is the one least gone on from.
func deepest(points []*point, messages []render.Message, tools string) (found *point, rest []render.Message) {
	for _, p := range points {
		n := len(p.asked)
		if p.tools != tools || len(messages) < n+2 || !slices.EqualFunc(p.asked, messages[:n], same) || !repeats(messages[n], p.said) {
			continue
		}
		at, behind := deepest(p.next, messages[n+1:], tools)
		if at == nil {
			at, behind = p, messages[n+1:]
		}
		if found == nil || len(behind) < len(rest) || len(behind) == len(rest) && at.taken < found.taken {
			found, rest = at, behind
		}
	}
	return found, rest
}

func same(a, b render.Message) bool {
	return a.Role == b.Role && a.Content == b.Content && a.Reasoning == b.Reasoning && a.Name == b.Name && a.ToolCallID == b.ToolCallID &&
		slices.Equal(a.ToolCalls, b.ToolCalls)
}

// repeats reports whether a message of a history is an answer that the host got. Hosts trim texts, leave reasoning out and
// write the arguments of calls anew, without meaning another.
func repeats(m, said render.Message) bool {
	trimmed := strings.TrimSpace
	return m.Role == string(env.RoleAssistant) && trimmed(m.Content) == trimmed(said.Content) &&
		(m.Reasoning == "" || trimmed(m.Reasoning) == trimmed(said.Reasoning)) &&
		slices.EqualFunc(m.ToolCalls, said.ToolCalls, func(a, b render.ToolCall) bool {
			return a.Name == b.Name && (a.ID == b.ID || a.ID == "") && sameJSON(a.Arguments, b.Arguments)
		})
}

func sameJSON(a, b string) bool {
	var x, y any
	return a == b || json.Unmarshal([]byte(a), &x) == nil && json.Unmarshal([]byte(b), &y) == nil && reflect.DeepEqual(x, y)
}

// told is tools as text to compare.
func told(tools []render.Tool) string {
	text, err := json.Marshal(tools)
	if err != nil {
		return "" // of a schema that is no JSON, which no renderer takes
	}
	return string(text)
}

// messageOf is a message of the wire as traces know it.
func messageOf(m render.Message) env.Message {
	out := env.Message{Role: env.Role(m.Role), Content: m.Content, ToolCallID: m.ToolCallID}
	for _, c := range m.ToolCalls {
		out.ToolCalls = append(out.ToolCalls, env.ToolCall(c))
	}
	return out
}

// called are the calls of an answer that can be read.
func called(said render.Answer) (out []render.ToolCall) {
	for _, c := range said.Calls {
		if c.Err == nil {
			out = append(out, render.ToolCall{Name: c.Name, Arguments: c.Arguments})
		}
	}
	return out
}
