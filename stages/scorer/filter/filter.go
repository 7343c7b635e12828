// Package filter says which scored samples are not worth training on.
//
// A Filter only judges; what follows from it (drop, or count and train all the same) is the scorer's Mode. Rewards of
// what a filter takes have counted in the group's baseline.
package filter

import (
	"fmt"

	"github.com/prl-project/prl/schemas"
)

// A Sample is a candidate for training, with the trace it is a branch of.
type Sample struct {
	*schemas.Sample
	Trace *schemas.Trace
}

// A Filter judges samples, each by itself. It must not change or keep them.
type Filter interface {
	// Name is what outcomes call the filter.
	Name() string
	// Takes reports whether the sample should not be trained on.
	Takes(s Sample) bool
}

// Names of the filters.
const (
	ZeroAdvantage = "zero_advantage"
	// NothingToTrain names groups without any token to train on, which no filter has to take: every reward is null, or
	// nothing was sampled.
	NothingToTrain = "nothing_to_train"
)

// A Mode is what happens to a sample that a filter takes.
type Mode string

const (
	// Drop leaves the sample out.
	Drop Mode = "drop"
	// Monitor counts it and trains on it.
	Monitor Mode = "monitor"
)

// Validate checks that the mode is one of the above.
func (m Mode) Validate() error {
	if m != Drop && m != Monitor {
		return fmt.Errorf("%q: %s or %s", m, Drop, Monitor)
	}
	return nil
}

// Zero is the filter zero_advantage: it takes a sample of which every advantage is zero.
type Zero struct{}

// Name is zero_advantage.
func (Zero) Name() string { return ZeroAdvantage }

// Takes reports whether every advantage of s is zero.
func (Zero) Takes(s Sample) bool {
	for i := range s.Advantages.Len() {
		if s.Advantages.At(i) != 0 {
			return false
		}
	}
	return true
}
