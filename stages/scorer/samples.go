package scorer

import (
	"encoding/binary"
	"math"
	"slices"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// A part is one message of a branch, and what the branch trains of it.
type part struct {
	node     *schemas.Node
	first    int // number of its first sampled token; -1 where no sampled token is trained
	from, to int // the tokens of an environment's answer that are trained
}

// parts are the messages of a branch, the root first. Only nodes that belong to it are trained in it; answers of the
// environment are messages of the roles after the first sampled token, without scaffolding where that is known.
func (r *rollout) parts(number int, roles []string) (parts []part, length int) {
	depth := 0
	for k := r.branches[number].leaf; k >= 0; k = r.trace.Nodes[k].Parent {
		depth++
	}
	parts = make([]part, 0, depth)
	for k := r.branches[number].leaf; k >= 0; k = r.trace.Nodes[k].Parent {
		parts = append(parts, part{node: &r.trace.Nodes[k], first: -1})
		if r.owner[k] == number && r.sampled[k] > 0 {
			parts[len(parts)-1].first = r.first[k]
		}
		if r.owner[k] == number && r.sampled[k] == 0 && slices.Contains(roles, r.trace.Nodes[k].Role) {
			parts[len(parts)-1].from, parts[len(parts)-1].to = body(&r.trace.Nodes[k])
		}
		length += len(r.trace.Nodes[k].Mask)
	}
	slices.Reverse(parts)
	for i := range parts {
		if slices.Contains(parts[i].node.Mask, 1) {
			break
		}
		parts[i].to = parts[i].from // nobody had said anything yet
	}
	return parts, length
}

// body is the tokens of a message's content; all of them where what is scaffolding is not known.
func body(n *schemas.Node) (from, to int) {
	if n.BodyTo == 0 {
		return 0, len(n.Mask)
	}
	return n.BodyFrom, n.BodyTo
}

// sample makes the sample of a branch from its member's credit, and gives the messages it joins, the root first; nil where
// none of its tokens is in a loss.
func (r *rollout) sample(number int, credit advantage.Credit, roles []string) (*schemas.Sample, []*schemas.Node) {
	if credit.Answers == 0 {
		roles = nil
	}
	parts, length := r.parts(number, roles)
	trains, answers := false, false
	path := make([]*schemas.Node, len(parts))
	for i, p := range parts {
		path[i] = p.node
		trains, answers = trains || p.first >= 0, answers || p.from < p.to
	}
	rl, ref := trains && credit.RL, trains && credit.RefKL != 0
	ce := trains && credit.CE != 0 || answers
	if !rl && !ce && !ref {
		return nil, nil
	}
	s := &schemas.Sample{RolloutIndex: r.trace.RolloutIndex, Branch: number, Agent: path[len(path)-1].Agent}
	allocate(s, length, ce, ref)
	at := 0
	for _, p := range parts {
		write(s, at, p, credit)
		at += len(p.node.Mask)
		if r.trace.Policy == "" {
			s.PolicyStart = lower(s.PolicyStart, nodeStart(p.node))
		}
	}
	return s, path
}

// allocate makes a sample's tensors of n tokens.
func allocate(s *schemas.Sample, n int, ce, ref bool) {
	width := 4 + 4 + 4 + 4 + 1
	if ce {
		width += 4
	}
	if ref {
		width += 4 + 4
	}
	memory := make([]byte, width*n)
	tensor := func(width int) []byte {
		t := memory[: width*n : width*n]
		memory = memory[width*n:]
		return t
	}
	s.TokenIDs, s.Logprobs, s.Advantages, s.Temperatures, s.Mask = tensor(4), tensor(4), tensor(4), tensor(4), tensor(1)
	if ce {
		s.CeWeights = tensor(4)
	}
	if ref {
		s.RefKlWeights, s.RefLogprobs = tensor(4), tensor(4)
	}
}

// write puts a message into a sample's tensors, from token at on.
func write(s *schemas.Sample, at int, p part, credit advantage.Credit) {
	n := p.node
	copy(s.TokenIDs[4*at:], n.TokenIDs)
	copy(s.Logprobs[4*at:], n.Logprobs)
	one, temperature := math.Float32bits(1), math.Float32bits(float32(n.Temperature))
	temperatures := s.Temperatures[4*at:]
	for k, m := range n.Mask {
		bits := one
		if m == 1 {
			bits = temperature
		}
		binary.LittleEndian.PutUint32(temperatures[4*k:], bits)
	}
	if p.first >= 0 {
		train(s, at, p, credit)
	}
	for k := p.from; k < p.to; k++ {
		put(s.CeWeights, at+k, credit.Answers)
	}
}

// train credits the sampled tokens of a message.
func train(s *schemas.Sample, at int, p part, credit advantage.Credit) {
	mask := p.node.Mask
	if credit.RL {
		copy(s.Mask[at:], mask)
		next := p.first
		for k, m := range mask {
			if m == 1 {
				put(s.Advantages, at+k, credit.At(next))
				next++
			}
		}
	}
	if credit.CE != 0 {
		fill(s.CeWeights, at, mask, credit.CE)
	}
	if credit.RefKL != 0 {
		fill(s.RefKlWeights, at, mask, credit.RefKL)
		for k, m := range mask {
			if m == 1 {
				put(s.RefLogprobs, at+k, p.node.RefLogprobs.At(k))
			}
		}
	}
}

// fill puts v where the mask is 1, from element at on.
func fill(t schemas.Float32s, at int, mask schemas.Uint8s, v float32) {
	for k, m := range mask {
		if m == 1 {
			put(t, at+k, v)
		}
	}
}

func put(t schemas.Float32s, i int, v float32) {
	binary.LittleEndian.PutUint32(t[4*i:], math.Float32bits(v))
}
