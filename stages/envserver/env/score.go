package env

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
)

// Score is what an episode was worth.
type Score struct {
	// Rewards are the components of the reward by name.
	Rewards Rewards
	// Agents are the rewards of agents by name, in an episode that has several ([MultiAgent]). For an agent that is not here
	// Rewards hold, which are those of the rollout as a whole and are shown as such.
	Agents map[string]Rewards
	// Metrics are figures that are recorded but not trained on. All finite.
	Metrics map[string]float64
	// CharRewards are optional rewards of single characters, see [CharRewards]. Episode.Score gives element k for the k-th call of
	// Reply; a [Session] hands them on with element k for the k-th reply of the rollout, nil for one that went to tools.
	// Elements may be nil, or missing at the end.
	CharRewards []CharRewards
	// Stop is why the episode ended, in the environment's words ("solved", "lost"). Empty: "done", or "max_turns".
	Stop string
}

// Rewards holds the components of a reward by name.
type Rewards map[string]Reward

// Reward is one component.
type Reward struct {
	// Value is nil where the component does not apply to the episode; that is not the same as 0.
	Value *float64
	// Weight is what the component counts in the total; 0 shows it without training on it.
	Weight float64
}

// Value is a component of weight 1.
func Value(v float64) Reward { return Weighted(v, 1) }

// Weighted is a component with a weight of its own.
func Weighted(v, weight float64) Reward { return Reward{Value: &v, Weight: weight} }

// NotApplicable is a component that does not apply to this episode.
func NotApplicable(weight float64) Reward { return Reward{Weight: weight} }

// Bool is 1 for true and 0 for false.
func Bool(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// Total is the weighted sum of the components that apply, added in order of name so that it is the same bits every time; nil
// if none applies.
func (r Rewards) Total() *float64 {
	var total float64
	applies := false
	for _, name := range slices.Sorted(maps.Keys(r)) {
		if v := r[name].Value; v != nil {
			total += *v * r[name].Weight
			applies = true
		}
	}
	if !applies {
		return nil
	}
	return &total
}

// Check returns an error if the score cannot be recorded: a figure that is not finite, or character rewards that do not fit
// the replies (their contents, in order).
func (s Score) Check(replies []string) error {
	if err := s.Rewards.check(); err != nil {
		return err
	}
	for agent, rewards := range s.Agents {
		if err := rewards.check(); err != nil {
			return fmt.Errorf("agent %q: %w", agent, err)
		}
		if rewards.Total() == nil && s.Rewards.Total() != nil {
			return fmt.Errorf("agent %q: none of its rewards applies; leave the agent out for the rollout's to hold", agent)
		}
	}
	for name, v := range s.Metrics {
		if !finite(v) {
			return fmt.Errorf("metric %q is not finite", name)
		}
	}
	if len(s.CharRewards) > len(replies) {
		return fmt.Errorf("character rewards for %d replies of %d", len(s.CharRewards), len(replies))
	}
	for k, c := range s.CharRewards {
		if err := c.check(replies[k]); err != nil {
			return fmt.Errorf("reply %d: %w", k, err)
		}
	}
	return nil
}

func (r Rewards) check() error {
	for name, c := range r {
		if !finite(c.Weight) || c.Value != nil && !finite(*c.Value) {
			return fmt.Errorf("reward %q is not finite", name)
		}
	}
	if total := r.Total(); total != nil && !finite(*total) {
		return errors.New("the sum of the rewards is not finite")
	}
	return nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
