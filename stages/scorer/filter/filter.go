// Package filter says which scored samples are not worth training on.
//
// A Filter only judges, each sample by itself; its Mode says what follows. Rewards of what a filter takes have counted in
// the group's baseline. The table of all filters is in stages/scorer/README.md.
package filter

import (
	"bytes"
	"fmt"

	"github.com/prl-project/prl/schemas"
)

// A Sample is a candidate for training, with what it was made of.
type Sample struct {
	*schemas.Sample
	// Trace is the rollout of which the sample is a branch.
	Trace *schemas.Trace
	// Path is the branch's messages, the root first. Their masks say what was sampled; the sample's mask says what the
	// policy gradient trains.
	Path []*schemas.Node
	// Reward is the branch's; nil where none applies.
	Reward *float64
	// Failed is the number of the group's rollouts that failed.
	Failed int
}

// sampled is the number of tokens the policy sampled in the branch.
func (s *Sample) sampled() (n int) {
	for _, node := range s.Path {
		n += bytes.Count(node.Mask, []byte{1})
	}
	return n
}

// A Filter judges samples. It must not change or keep them.
type Filter interface {
	// Name is what outcomes and configurations call the filter.
	Name() string
	// Does is what happens to what it takes.
	Does() Mode
	// Validate checks its parameters. An error starts with the one it speaks of.
	Validate() error
	// Takes reports whether the sample should not be trained on.
	Takes(s Sample) bool
}

// A Mode is what happens to a sample that a filter takes.
type Mode string

const (
	// Drop leaves the sample out, and counts it where others of its group are trained (SampleGroup.monitored).
	Drop Mode = "drop"
	// Monitor counts it (SampleGroup.monitored) and trains on it.
	Monitor Mode = "monitor"
	// Off does not look.
	Off Mode = "off"
)

func (m Mode) validate() error {
	if m != Drop && m != Monitor && m != Off {
		return fmt.Errorf("mode = %q: %s, %s or %s", m, Drop, Monitor, Off)
	}
	return nil
}

// NothingToTrain is named where no filter had to take anything: no token of the group is in a loss, as every reward is
// null, or nothing was sampled.
const NothingToTrain = "nothing_to_train"

// Config is the section [scorer.filters]: a table of each filter.
type Config struct {
	ZeroAdvantage ZeroAdvantage `toml:"zero_advantage"`
	Errored       Errored       `toml:"errored"`
	Truncated     Truncated     `toml:"truncated"`
	Length        Length        `toml:"length"`
	RewardRange   RewardRange   `toml:"reward_range"`
	Gibberish     Gibberish     `toml:"gibberish"`
	Repetition    Repetition    `toml:"repetition"`
}

// DefaultConfig drops only what has nothing to teach, and counts what speaks of trouble without being told how.
func DefaultConfig() Config {
	return Config{
		ZeroAdvantage: DefaultZeroAdvantage(), Errored: DefaultErrored(), Truncated: DefaultTruncated(), Length: DefaultLength(),
		RewardRange: DefaultRewardRange(), Gibberish: DefaultGibberish(), Repetition: DefaultRepetition(),
	}
}

// all filters, in the order in which they take samples: the first that drops one is its fate.
func (c Config) all() []Filter {
	return []Filter{c.ZeroAdvantage, c.Errored, c.Truncated, c.Length, c.RewardRange, c.Gibberish, c.Repetition}
}

// Filters are those that are not off. An error starts with the key it speaks of, within the section.
func (c Config) Filters() ([]Filter, error) {
	var active []Filter
	for _, f := range c.all() {
		err := f.Does().validate()
		if err == nil && f.Does() != Off {
			err = f.Validate()
			active = append(active, f)
		}
		if err != nil {
			return nil, fmt.Errorf("%s.%w", f.Name(), err)
		}
	}
	return active, nil
}
