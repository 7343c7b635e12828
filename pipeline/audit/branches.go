package audit

import (
	"crypto/sha256"
	"encoding/binary"
	"math"

	"github.com/prl-project/prl/schemas"
)

// A branch is what training may see of a root→leaf path.
type branch struct {
	index int
	sum   sum    // of its tensors as a sample
	start *int64 // lowest version among its sampled tokens
}

// A sum stands for tensors.
type sum [16]byte

// sumOf sums token ids, mask, log-probabilities and temperatures, and advantages where they are given.
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

// branchesOf lists the branches of a trace that have a token to train on. A sampled node that branches share is trained
// in the first of them.
func branchesOf(t *schemas.Trace, leaves []int) (branches []branch) {
	used := make([]bool, len(t.Nodes))
	for index, leaf := range leaves {
		var path []int // from the leaf
		for i := leaf; i >= 0; i = t.Nodes[i].Parent {
			path = append(path, i)
		}
		var ids, mask, logprobs, temperatures []byte
		var start *int64
		trains := false
		for k := len(path) - 1; k >= 0; k-- {
			n := &t.Nodes[path[k]]
			ids, logprobs = append(ids, n.TokenIDs...), append(logprobs, n.Logprobs...)
			for _, m := range n.Mask {
				temperature := float32(1)
				if used[path[k]] {
					m = 0
				}
				if m == 1 {
					temperature, trains = float32(n.Temperature), true
				}
				mask = append(mask, m)
				temperatures = binary.LittleEndian.AppendUint32(temperatures, math.Float32bits(temperature))
			}
			used[path[k]] = true
			start = lowest(start, startOf(n))
		}
		if trains {
			branches = append(branches, branch{index, sumOf(ids, mask, logprobs, temperatures), start})
		}
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
