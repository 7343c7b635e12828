package scorer

import (
	"bytes"
	"fmt"
	"math"

	"github.com/prl-project/prl/schemas"
)

// maxBranchTokens bounds the tokens, and the nodes, of all branches of a rollout together: a small trace with many leaves
// under one long path would otherwise become a huge SampleGroup.
const maxBranchTokens = 1 << 24

// check refuses a trace without error that cannot be trained on as it is (I7), and where the algorithm needs a teacher one
// that has not been to it.
func check(t *schemas.Trace, teacher bool) error {
	if failed(t) {
		return nil
	}
	begun := make([]bool, len(t.Nodes)) // the branch has tokens up to the node
	for i := range t.Nodes {
		n := &t.Nodes[i]
		if len(n.TokenIDs) != 4*len(n.Mask) || len(n.Logprobs) != 4*len(n.Mask) || len(n.TokenRewards) != 0 && len(n.TokenRewards) != 4*len(n.Mask) {
			return fmt.Errorf("nodes.%d: tensors of unequal length", i)
		}
		begun[i] = len(n.Mask) > 0 || n.Parent >= 0 && begun[n.Parent]
		if len(n.Mask) > 0 && n.Mask[0] == 1 && (n.Parent < 0 || !begun[n.Parent]) {
			return fmt.Errorf("nodes.%d: the first token of a branch was sampled from nothing", i)
		}
		if k := n.Mask.NotBit(); k >= 0 {
			return fmt.Errorf("nodes.%d.mask: element %d is %d", i, k, n.Mask[k])
		}
		if k := n.TokenIDs.Negative(); k >= 0 {
			return fmt.Errorf("nodes.%d.token_ids: element %d is %d", i, k, n.TokenIDs.At(k))
		}
		first := bytes.IndexByte(n.Mask, 1) // sampled token
		sampled := first >= 0
		if sampled && t.Policy == "" && (len(n.Versions) == 0 || n.Versions[0].Offset > first) {
			return fmt.Errorf("nodes.%d.versions: token %d was sampled by no version, so it could never be too old", i, first)
		}
		if temperature := float32(n.Temperature); sampled && !(temperature > 0 && temperature <= math.MaxFloat32) {
			return fmt.Errorf("nodes.%d: tokens sampled at temperature %v cannot be trained on", i, n.Temperature)
		}
		if sampled && teacher && len(n.RefLogprobs) != 4*len(n.Mask) {
			return fmt.Errorf("nodes.%d.ref_logprobs: %d of %d tokens have a teacher's: set teacher in [envs.%s], or another scorer.advantage", i, n.RefLogprobs.Len(), len(n.Mask), t.Env)
		}
		if k := n.TokenRewards.NotFinite(); k >= 0 {
			return fmt.Errorf("nodes.%d.token_rewards: element %d is %v", i, k, n.TokenRewards.At(k))
		}
	}
	if tokens, nodes := branchSizes(t); tokens > maxBranchTokens || nodes > maxBranchTokens {
		return fmt.Errorf("%d tokens in %d nodes of all branches, more than %d", tokens, nodes, maxBranchTokens)
	}
	return nil
}

// branchSizes is the number of tokens and nodes of all branches of a trace; a node counts in each branch it is part of.
func branchSizes(t *schemas.Trace) (tokens, nodes int64) {
	type size struct{ tokens, nodes int64 }
	upTo := make([]size, len(t.Nodes)) // from the root to each node
	inner := make([]bool, len(t.Nodes))
	for i := range t.Nodes {
		upTo[i] = size{int64(t.Nodes[i].TokenIDs.Len()), 1}
		if p := t.Nodes[i].Parent; p >= 0 {
			upTo[i].tokens += upTo[p].tokens
			upTo[i].nodes += upTo[p].nodes
			inner[p] = true
		}
	}
	for i, n := range upTo {
		if !inner[i] {
			tokens += n.tokens
			nodes += n.nodes
		}
	}
	return tokens, nodes
}
