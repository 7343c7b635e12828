// Package advantage says how much better than its group each rollout did, as one number per sampled token.
//
// An Algorithm is pure: the same rollouts give the same bits, finite rewards give finite advantages, and a group that
// did equally well everywhere gets exactly zero.
package advantage

import (
	"bytes"
	"fmt"
	"math"
	"strings"

	"github.com/prl-project/prl/schemas"
)

// A Rollout is what an algorithm sees of one rollout: its trace, which ended without error.
//
// The sampled tokens of a rollout are numbered over its nodes, in their order, whichever branches share them.
type Rollout struct {
	Trace *schemas.Trace
	// Sampled is the number of tokens the policy sampled.
	Sampled int
	// TokenRewards is the environment's reward of each sampled token, NaN for those of a node without such rewards;
	// shape [Sampled], or nil where no node has any.
	TokenRewards []float32
}

// NewRollout counts the sampled tokens of a trace and collects their rewards.
func NewRollout(t *schemas.Trace) Rollout {
	r := Rollout{Trace: t}
	perToken := false
	for i := range t.Nodes {
		r.Sampled += bytes.Count(t.Nodes[i].Mask, []byte{1})
		perToken = perToken || len(t.Nodes[i].TokenRewards) > 0
	}
	if !perToken {
		return r
	}
	r.TokenRewards = make([]float32, 0, r.Sampled)
	for i := range t.Nodes {
		n := &t.Nodes[i]
		for k, m := range n.Mask {
			switch {
			case m == 0:
			case len(n.TokenRewards) > 0:
				r.TokenRewards = append(r.TokenRewards, n.TokenRewards.At(k))
			default:
				r.TokenRewards = append(r.TokenRewards, float32(math.NaN()))
			}
		}
	}
	return r
}

// An Advantage belongs to one rollout: a number for each of its sampled tokens.
type Advantage struct {
	// Excluded rollouts are not trained on.
	Excluded bool
	// All holds for every sampled token where Tokens is nil.
	All float32
	// Tokens: shape [Rollout.Sampled], or nil.
	Tokens []float32
}

// At is the advantage of sampled token i.
func (a Advantage) At(i int) float32 {
	if a.Tokens != nil {
		return a.Tokens[i]
	}
	return a.All
}

// An Algorithm turns the rewards of a group into advantages.
type Algorithm interface {
	// Advantages gives each rollout of a group, in the order of their indices, its advantage. It must not keep or
	// change the rollouts, and a rollout without a reward must not make an error: it is excluded, and part of no baseline.
	Advantages(group []Rollout) []Advantage
}

// Options are the settings of the algorithms; each takes those that concern it.
type Options struct {
	// NormalizeStd divides by the standard deviation of what was compared.
	NormalizeStd bool
}

// Names of the algorithms.
const GRPO = "grpo"

// New makes the named algorithm.
func New(name string, o Options) (Algorithm, error) {
	switch name {
	case GRPO:
		return grpo{o}, nil
	}
	return nil, fmt.Errorf("%q is no advantage algorithm: one of %s", name, strings.Join([]string{GRPO}, ", "))
}
