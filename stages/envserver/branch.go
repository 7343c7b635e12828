package envserver

import (
	"slices"

	"github.com/prl-project/prl/schemas"
)

// branch takes in a prompt that a server saw in place of the one it was asked to continue, as one does that renders
// messages itself. What the policy saw and sampled before stays as it is, on its branch. The nodes whose tokens the prompt
// begins with are shared; of the others on the way to the leaf there are copies without tokens, whose content is what was
// said, then come the new messages (moved there, since parents stand before their children), the last of which has all of
// the prompt's other tokens: where one message ends in them and the next begins is not known.
func (c *conversation) branch(tokens []int32) prompt {
	p := prompt{tokens: slices.Clone(tokens)}
	if opening := c.renderer.GenerationPrompt(); len(opening) < len(tokens) && slices.Equal(tokens[len(tokens)-len(opening):], opening) {
		p.opening = len(opening)
	}
	rest := p.tokens[:len(p.tokens)-p.opening]
	t := c.now
	path := branchTo(c.nodes, t.leaf)
	parent := -1
	for len(path) > 0 {
		own := c.nodes[path[0]].TokenIDs.Values()
		if len(own) > len(rest) || !slices.Equal(own, rest[:len(own)]) {
			break
		}
		parent, path, rest = path[0], path[1:], rest[len(own):]
	}
	news := slices.Clone(c.nodes[len(c.nodes)-len(t.unseen):])
	c.nodes = c.nodes[:len(c.nodes)-len(news)]
	for _, i := range path {
		n := c.nodes[i]
		c.nodes = append(c.nodes, schemas.Node{
			Parent: parent, Agent: n.Agent, Role: n.Role, Content: n.Content, Images: n.Images, Reasoning: n.Reasoning,
			ToolCalls: n.ToolCalls, ToolCallID: n.ToolCallID,
		})
		parent = len(c.nodes) - 1
	}
	for k, n := range news {
		n.Parent = parent
		c.nodes = append(c.nodes, n)
		parent = len(c.nodes) - 1
		t.unseen[k] = parent
	}
	c.see(parent, rest)
	return p
}

// branchTo is the path from a root to a node; empty to -1.
func branchTo(nodes []schemas.Node, leaf int) (path []int) {
	for i := leaf; i >= 0; i = nodes[i].Parent {
		path = append(path, i)
	}
	slices.Reverse(path)
	return path
}
