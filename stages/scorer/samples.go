package scorer

import (
	"bytes"
	"encoding/binary"
	"iter"
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
		if bytes.IndexByte(parts[i].node.Mask, 1) >= 0 {
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
// none of its tokens is in a loss. Its tensors are in m.
func (r *rollout) sample(number int, credit advantage.Credit, roles []string, m *memory) (*schemas.Sample, []*schemas.Node) {
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
	m.tensors(s, length, ce, ref)
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

// tensors makes a sample's tensors of n tokens: zeros, but for those of which write writes every element.
func (m *memory) tensors(s *schemas.Sample, n int, ce, ref bool) {
	written, zeros := 4+4+4, 4+1
	if ce {
		zeros += 4
	}
	if ref {
		zeros += 4 + 4
	}
	block := m.take((written + zeros) * n)
	clear(block[written*n:])
	tensor := func(width int) []byte {
		t := block[: width*n : width*n]
		block = block[width*n:]
		return t
	}
	s.TokenIDs, s.Logprobs, s.Temperatures = tensor(4), tensor(4), tensor(4)
	s.Advantages, s.Mask = tensor(4), tensor(1)
	if ce {
		s.CeWeights = tensor(4)
	}
	if ref {
		s.RefKlWeights, s.RefLogprobs = tensor(4), tensor(4)
	}
}

// write puts a message into a sample's tensors, from token at on.
func write(s *schemas.Sample, at int, p part, credit advantage.Credit) {
	n, to := p.node, at+len(p.node.Mask)
	copy(s.TokenIDs[4*at:], n.TokenIDs)
	copy(s.Logprobs[4*at:], n.Logprobs)
	next := at
	for from, to := range runs(n.Mask) {
		fill(s.Temperatures.Slice(next, at+from), 1)
		fill(s.Temperatures.Slice(at+from, at+to), float32(n.Temperature))
		next = at + to
	}
	fill(s.Temperatures.Slice(next, to), 1)
	if p.first >= 0 {
		train(s, at, p, credit)
	}
	if p.from < p.to {
		fill(s.CeWeights.Slice(at+p.from, at+p.to), credit.Answers)
	}
}

// train credits the sampled tokens of a message.
func train(s *schemas.Sample, at int, p part, credit advantage.Credit) {
	next := p.first
	for from, to := range runs(p.node.Mask) {
		i, j := at+from, at+to
		if credit.RL {
			copy(s.Mask[i:j], p.node.Mask[from:to])
			if credit.Tokens == nil {
				fill(s.Advantages.Slice(i, j), credit.All)
			} else {
				for k := range to - from {
					put(s.Advantages, i+k, credit.At(next+k))
				}
			}
		}
		if credit.CE != 0 {
			fill(s.CeWeights.Slice(i, j), credit.CE)
		}
		if credit.RefKL != 0 {
			fill(s.RefKlWeights.Slice(i, j), credit.RefKL)
			copy(s.RefLogprobs.Slice(i, j), p.node.RefLogprobs.Slice(from, to))
		}
		next += to - from
	}
}

// runs are the stretches of sampled tokens, from the first to behind the last.
func runs(mask schemas.Uint8s) iter.Seq2[int, int] {
	return func(yield func(from, to int) bool) {
		for to := 0; ; {
			from := bytes.IndexByte(mask[to:], 1)
			if from < 0 {
				return
			}
			from += to
			if to = bytes.IndexByte(mask[from:], 0); to < 0 {
				to = len(mask) - from
			}
			if to += from; !yield(from, to) {
				return
			}
		}
	}
}

// fill makes every element v.
func fill(t schemas.Float32s, v float32) {
	first := min(t.Len(), 16)
	for i := range first {
		put(t, i, v)
	}
	for n := 4 * first; n < len(t); n *= 2 {
		copy(t[n:], t[:n])
	}
}

func put(t schemas.Float32s, i int, v float32) {
	binary.LittleEndian.PutUint32(t[4*i:], math.Float32bits(v))
}
