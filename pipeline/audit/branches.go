package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/prl-project/prl/schemas"
)

// A branch is what training may see of a root→leaf path.
type branch struct {
	index   int
	sums    [2]sum // of its tensors as a sample
	sampled sum    // of which tokens were sampled in it and in no branch before; the zero sum for none
	start   *int64 // lowest version among its sampled tokens; nil for a frozen policy
}

// is reports whether the tensors of a sample are those of the branch.
func (b *branch) is(s sum) bool { return s == b.sums[0] || s == b.sums[1] }

// A sum stands for tensors.
type sum [16]byte

// sumOf sums tensors, in their order.
func sumOf(tensors ...[]byte) (s sum) {
	h := sha256.New()
	for _, t := range tensors {
		h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(t)))) //nolint:errcheck // a hash takes everything
		h.Write(t)                                                     //nolint:errcheck // a hash takes everything
	}
	copy(s[:], h.Sum(nil))
	return s
}

// maxBranchTokens is what the branches of a rollout may hold together; the scorer refuses more.
const maxBranchTokens = 1 << 24

// leavesOf lists the leaves of a message graph, in the order of its nodes, and counts the tokens of all branches: what
// several share counts in each.
func leavesOf(t *schemas.Trace) (leaves []int, tokens int) {
	inner, path := make([]bool, len(t.Nodes)), make([]int, len(t.Nodes))
	for i := range t.Nodes {
		path[i] = t.Nodes[i].TokenIDs.Len()
		if p := t.Nodes[i].Parent; p >= 0 {
			inner[p] = true
			path[i] = min(path[i]+path[p], maxBranchTokens)
		}
	}
	for i := range t.Nodes {
		if !inner[i] {
			leaves = append(leaves, i)
			tokens = min(tokens+path[i], maxBranchTokens)
		}
	}
	return leaves, tokens
}

// branchesOf lists the branches of a trace. A sampled node that branches share is trained in the first of them; in the
// others the temperature of its tokens means nothing, and may be given as 1.
func branchesOf(t *schemas.Trace, leaves []int) (branches []branch) {
	used := make([]bool, len(t.Nodes))
	for index, leaf := range leaves {
		var path []int // from the leaf
		for i := leaf; i >= 0; i = t.Nodes[i].Parent {
			path = append(path, i)
		}
		var ids, sampled, logprobs []byte
		var temperatures [2][]byte
		var start *int64
		for k := len(path) - 1; k >= 0; k-- {
			n := &t.Nodes[path[k]]
			ids, logprobs = append(ids, n.TokenIDs...), append(logprobs, n.Logprobs...)
			for _, m := range n.Mask {
				said, trained := float32(1), float32(1)
				if m == 1 {
					said = float32(n.Temperature)
				}
				if used[path[k]] {
					m = 0
				} else {
					trained = said
				}
				sampled = append(sampled, m)
				for i, v := range []float32{said, trained} {
					temperatures[i] = binary.LittleEndian.AppendUint32(temperatures[i], math.Float32bits(v))
				}
			}
			used[path[k]] = true
			if t.Policy == "" {
				start = lowest(start, startOf(n))
			}
		}
		branches = append(branches, branch{
			index: index, sampled: marked(sampled), start: start,
			sums: [2]sum{sumOf(ids, logprobs, temperatures[0]), sumOf(ids, logprobs, temperatures[1])},
		})
	}
	return branches
}

// versionOf is the version that made token k of a node; nil where none is known.
func versionOf(n *schemas.Node, k int) (version *int64) {
	for i := range n.Versions {
		if n.Versions[i].Offset <= k {
			version = &n.Versions[i].Version
		}
	}
	return version
}

// startOf is the lowest version among the sampled tokens of a node.
func startOf(n *schemas.Node) (start *int64) {
	for k, m := range n.Mask {
		if m == 1 {
			start = lowest(start, versionOf(n, k))
		}
	}
	return start
}
