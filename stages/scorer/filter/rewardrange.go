package filter

import (
	"fmt"
	"math"
)

// RewardRange takes a sample whose reward is outside of a range, or that has none. With sft it chooses the rollouts that
// are worth imitating.
type RewardRange struct {
	// Mode is what happens to the samples it takes: they are dropped, only counted (monitor), or it is off.
	Mode Mode `toml:"mode"`
	// Min is the lowest reward that stays; left out for no limit.
	Min float64 `toml:"min"`
	// Max is the highest; left out for no limit.
	Max float64 `toml:"max"`
}

// DefaultRewardRange is off: it has no limits.
func DefaultRewardRange() RewardRange {
	return RewardRange{Mode: Off, Min: -math.MaxFloat64, Max: math.MaxFloat64}
}

// Name is reward_range.
func (RewardRange) Name() string { return "reward_range" }

// Does is the mode.
func (f RewardRange) Does() Mode { return f.Mode }

// Validate wants a limit, and none that takes everything.
func (f RewardRange) Validate() error {
	switch {
	case !(f.Min <= f.Max):
		return fmt.Errorf("min = %v is above max = %v, or one of them is no number: nothing would be left", f.Min, f.Max)
	case f.Min <= -math.MaxFloat64 && f.Max >= math.MaxFloat64:
		return fmt.Errorf("mode = %q: set min or max", f.Mode)
	}
	return nil
}

// Takes reports whether the reward is outside the range, or null.
func (f RewardRange) Takes(s Sample) bool {
	return s.Reward == nil || *s.Reward < f.Min || *s.Reward > f.Max
}
