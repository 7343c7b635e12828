package weights

import (
	"fmt"

	"github.com/prl-project/prl/schemas"
)

// MaxDeltas is how many deltas may follow each other in a chain.
const MaxDeltas = 100

// A Chain is what the weights of a version are made from.
type Chain struct {
	Whole   []*schemas.PolicyVersion // a full version, then deltas, each of the one before it
	Adapter *schemas.PolicyVersion   // that goes on top; nil for none
}

// Versions are all versions of the chain.
func (c Chain) Versions() []*schemas.PolicyVersion {
	if c.Adapter == nil {
		return c.Whole
	}
	return append(c.Whole[:len(c.Whole):len(c.Whole)], c.Adapter)
}

// last is the version whose weights the chain gives, without the adapter.
func (c Chain) last() *schemas.PolicyVersion { return c.Whole[len(c.Whole)-1] }

// A History is the published versions of a run, by the whole weights that they give.
type History struct {
	giving map[string][]*schemas.PolicyVersion
	based  bool
}

// NewHistory is the history of versions, in any order.
func NewHistory(versions ...*schemas.PolicyVersion) *History {
	h := &History{giving: map[string][]*schemas.PolicyVersion{}}
	h.Add(versions...)
	return h
}

// Add makes versions known.
func (h *History) Add(versions ...*schemas.PolicyVersion) {
	for _, v := range versions {
		if v.Kind == schemas.KindLoRA {
			h.based = true
			continue
		}
		h.based = h.based || v.Kind == schemas.KindDelta
		h.giving[v.WeightsSHA256()] = append(h.giving[v.WeightsSHA256()], v)
	}
}

// Based reports whether any version applies to the weights of another.
func (h *History) Based() bool { return h.based }

// Chain finds what the weights of v are made from among the versions before it: of those that give the same weights a full
// one, and else the newest. The versions after v make no difference.
func (h *History) Chain(v *schemas.PolicyVersion) (Chain, error) {
	var c Chain
	if v.Kind == schemas.KindLoRA {
		c.Adapter = v
		if v = h.base(c.Adapter); v == nil {
			return Chain{}, fmt.Errorf("version %d is an adapter for weights with SHA-256 %s, which no version before it has", c.Adapter.Version, c.Adapter.BaseSHA256)
		}
	}
	for v.Kind != schemas.KindFull {
		switch base := h.base(v); {
		case v.Kind != schemas.KindDelta:
			return Chain{}, fmt.Errorf("the weights of version %d are of kind %q: %s, %s and %s are known", v.Version, v.Kind, schemas.KindFull, schemas.KindDelta, schemas.KindLoRA)
		case base == nil:
			return Chain{}, fmt.Errorf("version %d is a delta of weights with SHA-256 %s, which no version before it has", v.Version, v.BaseSHA256)
		case len(c.Whole) == MaxDeltas:
			return Chain{}, fmt.Errorf("version %d ends a chain of more than %d deltas", c.Whole[0].Version, MaxDeltas)
		default:
			c.Whole = append(c.Whole, v)
			v = base
		}
	}
	c.Whole = append(c.Whole, v)
	for i, j := 0, len(c.Whole)-1; i < j; i, j = i+1, j-1 {
		c.Whole[i], c.Whole[j] = c.Whole[j], c.Whole[i]
	}
	return c, nil
}

// base is the version to whose weights v applies; nil where it is not known.
func (h *History) base(v *schemas.PolicyVersion) (best *schemas.PolicyVersion) {
	for _, b := range h.giving[v.BaseSHA256] {
		switch {
		case b.Version >= v.Version:
		case best == nil, b.Kind == schemas.KindFull && best.Kind != schemas.KindFull,
			b.Kind == best.Kind && b.Version > best.Version:
			best = b
		}
	}
	return best
}
