package export

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
)

// A conversation is a root→leaf path of a rollout, up to the last thing that the policy said.
type conversation struct {
	branch int
	agent  string
	reward *float64
	nodes  []*schemas.Node
	images bool
	// partial says that some of its tensors are gone.
	partial bool
}

// conversations takes a rollout apart. Branches on which the policy says nothing are left out.
func conversations(t *schemas.Trace) (list []conversation) {
	inner := make([]bool, len(t.Nodes))
	for i := range t.Nodes {
		if p := t.Nodes[i].Parent; p >= 0 {
			inner[p] = true
		}
	}
	branch := -1
	for i := range t.Nodes {
		if inner[i] {
			continue
		}
		branch++
		leaf := &t.Nodes[i]
		c := conversation{branch: branch, agent: leaf.Agent, reward: leaf.Reward}
		if c.reward == nil {
			c.reward = t.Reward
		}
		for k := i; k >= 0; k = t.Nodes[k].Parent {
			if n := &t.Nodes[k]; len(c.nodes) > 0 || said(n) {
				c.nodes = append(c.nodes, n)
				c.images = c.images || len(n.Images) > 0
			}
		}
		if len(c.nodes) > 0 {
			slices.Reverse(c.nodes)
			list = append(list, c)
		}
	}
	return list
}

// said reports whether the policy has sampled a message. Where its tensors are gone its role says so.
func said(n *schemas.Node) bool {
	if len(n.Mask) == 0 {
		return n.Role == "assistant" && n.Temperature > 0
	}
	return bytes.IndexByte(n.Mask, 1) >= 0
}

// tokens are those that the policy saw and sampled.
func (c conversation) tokens() (ids []int32) {
	for _, n := range c.nodes {
		ids = append(ids, n.TokenIDs.Values()...)
	}
	return ids
}

func (c conversation) length() (n int) {
	for _, node := range c.nodes {
		n += node.TokenIDs.Len()
	}
	return n
}

// messages are the nodes in the words of the format. They are copies: a row may wait for long, and a text of a trace holds all of it.
func (c conversation) messages() []Message {
	called := map[string]string{} // names of tools by id
	list := make([]Message, len(c.nodes))
	for i, n := range c.nodes {
		m := Message{Role: strings.Clone(n.Role), Content: strings.Clone(n.Content)}
		if n.Reasoning != "" {
			reasoning := strings.Clone(n.Reasoning)
			m.ReasoningContent = &reasoning
		}
		for _, call := range n.ToolCalls {
			id, name := strings.Clone(call.ID), strings.Clone(call.Name)
			called[id] = name
			m.ToolCalls = append(m.ToolCalls, ToolCall{id, "function", Function{name, strings.Clone(call.Arguments)}})
		}
		if n.ToolCallID != "" {
			id := strings.Clone(n.ToolCallID)
			m.ToolCallID = &id
			if name := called[n.ToolCallID]; name != "" {
				m.Name = &name
			}
		}
		list[i] = m
	}
	return list
}

// sumOf names what a conversation says.
func sumOf(messages []Message, tools *string) [32]byte {
	text, err := json.Marshal([]any{messages, tools})
	if err != nil {
		panic(err) // strings only
	}
	return sha256.Sum256(text)
}

func hexOf(sum [32]byte) string { return hex.EncodeToString(sum[:]) }
