package scorer

import (
	"bytes"
	"math"
	"slices"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// A rollout is a trace without error, taken apart: its branches, and who trains which of its nodes.
//
// A node that several branches share belongs to the first of them, in the order of their leaves among the nodes.
type rollout struct {
	trace    *schemas.Trace
	branches []branch
	members  []advantage.Member // in the order of their first branches
	owner    []int              // by node: the branch it belongs to
	first    []int              // by node: number of its first sampled token among those of its member
	sampled  []int              // by node: tokens that were sampled
	shared   map[string]int     // by agent: the member of its branches that have no reward of their own
}

// A branch is a root→leaf path.
type branch struct {
	leaf   int
	member int // its place among the rollout's members
}

// newRollout takes a trace apart.
//
// Every leaf with a reward of its own makes a member of its branch; the branches of one agent without one are a member
// together, which has the reward of the rollout.
func newRollout(t *schemas.Trace) *rollout {
	n := len(t.Nodes)
	numbers := make([]int, 3*n)
	r := &rollout{trace: t, owner: numbers[:n], first: numbers[n : 2*n], sampled: numbers[2*n:], shared: map[string]int{}}
	inner := make([]bool, n)
	for i := range t.Nodes {
		r.sampled[i], r.owner[i] = bytes.Count(t.Nodes[i].Mask, []byte{1}), -1
		if p := t.Nodes[i].Parent; p >= 0 {
			inner[p] = true
		}
	}
	for i := range t.Nodes {
		if !inner[i] {
			r.branch(i)
		}
	}
	r.number()
	r.measure()
	return r
}

// branch adds the branch of a leaf, and gives it the nodes that belong to no other.
func (r *rollout) branch(leaf int) {
	l := &r.trace.Nodes[leaf]
	m, known := r.shared[l.Agent]
	if l.Reward != nil || !known {
		m = len(r.members)
		r.members = append(r.members, advantage.Member{Rollout: r.trace.RolloutIndex, Agent: l.Agent, Reward: l.Reward})
	}
	if l.Reward == nil && !known {
		r.shared[l.Agent], r.members[m].Reward = m, r.trace.Reward
	}
	for k := leaf; k >= 0 && r.owner[k] < 0; k = r.trace.Nodes[k].Parent {
		r.owner[k] = len(r.branches)
	}
	r.branches = append(r.branches, branch{leaf, m})
}

// number counts the sampled tokens of each member, and collects their rewards.
func (r *rollout) number() {
	for i := range r.trace.Nodes {
		n, m := &r.trace.Nodes[i], &r.members[r.branches[r.owner[i]].member]
		r.first[i] = m.Sampled
		m.Sampled += r.sampled[i]
		if len(n.TokenRewards) == 0 || r.sampled[i] == 0 && m.TokenRewards == nil {
			continue
		}
		m.TokenRewards = pad(m.TokenRewards, r.first[i])
		for k, sampled := range n.Mask {
			if sampled == 1 {
				m.TokenRewards = append(m.TokenRewards, n.TokenRewards.At(k))
			}
		}
	}
	for i := range r.members {
		if m := &r.members[i]; m.TokenRewards != nil {
			m.TokenRewards = pad(m.TokenRewards, m.Sampled)
		}
	}
}

// pad fills rewards up to n tokens with those that have none.
func pad(rewards []float32, n int) []float32 {
	for len(rewards) < n {
		rewards = append(rewards, float32(math.NaN()))
	}
	return rewards
}

// measure finds the size of each member.
func (r *rollout) measure() {
	byMember := slices.Clone(r.branches)
	slices.SortStableFunc(byMember, func(a, b branch) int { return a.member - b.member })
	seen := make([]int, len(r.trace.Nodes)) // by the last member that has, from 1
	for _, b := range byMember {
		size := &r.members[b.member].Size
		for k := b.leaf; k >= 0 && seen[k] != b.member+1; k = r.trace.Nodes[k].Parent {
			seen[k] = b.member + 1
			size.Output += r.sampled[k]
			size.Total += len(r.trace.Nodes[k].Mask)
			if r.sampled[k] > 0 {
				size.Turns++
			}
		}
	}
}

// policyStart is the lowest version that sampled a token of a trace; nil where none is known, and for a frozen policy.
func policyStart(t *schemas.Trace) (lowest *int64) {
	if t.Policy != "" {
		return nil
	}
	for i := range t.Nodes {
		lowest = lower(lowest, nodeStart(&t.Nodes[i]))
	}
	return lowest
}

func nodeStart(n *schemas.Node) (lowest *int64) {
	for i, v := range n.Versions {
		end := len(n.Mask)
		if i+1 < len(n.Versions) {
			end = min(end, n.Versions[i+1].Offset)
		}
		if v.Offset < end && bytes.IndexByte(n.Mask[v.Offset:end], 1) >= 0 {
			lowest = lower(lowest, &n.Versions[i].Version)
		}
	}
	return lowest
}

func lower(a, b *int64) *int64 {
	if a == nil || b != nil && *b < *a {
		return b
	}
	return a
}
