// Package advantage says what a group of rollouts teaches: for every sampled token how much better than expected it did,
// and by what other losses it is trained.
//
// An Algorithm is pure: the same group gives the same bits, finite rewards give finite credits, and members that did
// equally well are told apart by exactly zero. The table of all algorithms, with their sources and their edge cases, is in
// stages/scorer/README.md.
package advantage

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// A Member is what is compared: a rollout, or, where branches have an agent or a reward of their own, the branches of one
// rollout that are rewarded together. It ended without error.
//
// The sampled tokens of a member are numbered over its nodes, in their order. A node that branches share belongs to the
// first of them.
type Member struct {
	// Rollout is the index of the rollout in its group.
	Rollout int
	// Agent whose branches they are; empty where the environment has one.
	Agent string
	// Reward is nil where none applies.
	Reward *float64
	// Sampled is the number of tokens the policy sampled.
	Sampled int
	// TokenRewards is the environment's reward of each sampled token, NaN for those of a node without such rewards;
	// shape [Sampled], or nil where no node has any.
	TokenRewards []float32
	// Size is what a length penalty looks at.
	Size Size
}

// A Size counts each node of a member's branches once, shared ones too.
type Size struct {
	Output int // sampled tokens
	Total  int // all tokens
	Turns  int // replies of the policy
}

// A Credit is what a member is trained on. That of a member which is not trained is zero.
type Credit struct {
	// RL says that the policy gradient trains the sampled tokens, with the advantages that follow.
	RL bool
	// All holds for every sampled token where Tokens is nil.
	All float32
	// Tokens: shape [Member.Sampled], or nil.
	Tokens []float32
	// RefKL weighs the divergence from the teacher at each sampled token.
	RefKL float32
	// CE weighs the cross-entropy of each sampled token.
	CE float32
	// Answers weighs the cross-entropy of each token with which the environment answered a reply of the policy.
	Answers float32
}

// At is the advantage of sampled token i.
func (c Credit) At(i int) float32 {
	if c.Tokens != nil {
		return c.Tokens[i]
	}
	return c.All
}

// A Group is the members of one group, by rollout and then by branch.
type Group struct {
	Env     string
	Members []Member
	// Averages are those of all groups before. Only an algorithm that needs an order looks at them, and moves them on.
	Averages Averages
}

// An Algorithm turns a group into credits.
type Algorithm interface {
	// Credits gives each member its credit. It must not keep or change the members. A member without a reward must not
	// make an error: where the algorithm goes by rewards, its credit is zero and it is part of no baseline.
	Credits(g Group) []Credit
}

// Needs is what an algorithm needs of the run and of its environments.
type Needs struct {
	// Order of all groups of an environment: one partition of traces.
	Order bool
	// Teacher has given the sampled tokens log-probabilities of its own.
	Teacher bool
	// OnPolicy rollouts: they are those of the policy that is trained.
	OnPolicy bool
}

// Names of the algorithms.
const (
	GRPO             = "grpo"
	MaxRL            = "max_rl"
	RLOO             = "rloo"
	RAE              = "rae"
	HierarchicalGRPO = "hierarchical_grpo"
	OPD              = "opd"
	OPSD             = "opsd"
	SFT              = "sft"
	Echo             = "echo"
)

// A kind is how an algorithm is made and what it takes.
type kind struct {
	make      func(Options) Algorithm
	needs     Needs
	gradient  bool // of the policy; takes ref_kl
	normalize bool // takes normalize_std
	penalty   bool // takes length_penalty
}

var kinds = map[string]kind{
	GRPO:             {make: newGRPO, needs: Needs{OnPolicy: true}, gradient: true, normalize: true, penalty: true},
	MaxRL:            {make: newMaxRL, needs: Needs{OnPolicy: true}, gradient: true},
	RLOO:             {make: newRLOO, needs: Needs{OnPolicy: true}, gradient: true},
	RAE:              {make: newRAE, needs: Needs{OnPolicy: true, Order: true}, gradient: true},
	HierarchicalGRPO: {make: newHierarchicalGRPO, needs: Needs{OnPolicy: true}, gradient: true, normalize: true},
	OPD:              {make: newDistillation, needs: Needs{OnPolicy: true, Teacher: true}},
	OPSD:             {make: newDistillation, needs: Needs{OnPolicy: true, Teacher: true}},
	SFT:              {make: newSFT},
	Echo:             {make: newEcho, needs: Needs{OnPolicy: true}, gradient: true, normalize: true, penalty: true},
}

// Names are those of all algorithms, sorted.
func Names() []string { return slices.Sorted(maps.Keys(kinds)) }

// New makes the named algorithm. An error starts with the option it speaks of.
func New(name string, o Options) (Algorithm, Needs, error) {
	k, ok := kinds[name]
	if !ok {
		return nil, Needs{}, fmt.Errorf("advantage = %q: one of %s", name, strings.Join(Names(), ", "))
	}
	if err := o.validate(name, k); err != nil {
		return nil, Needs{}, err
	}
	a, needs := k.make(o), k.needs
	if o.RefKL > 0 {
		a, needs.Teacher = withReference{a, float32(o.RefKL)}, true
	}
	return a, needs, nil
}
