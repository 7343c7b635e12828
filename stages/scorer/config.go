package scorer

import (
	"fmt"
	"maps"
	"slices"

	"github.com/prl-project/prl/stages/scorer/advantage"
	"github.com/prl-project/prl/stages/scorer/filter"
)

// Config is the section [scorer]. What [scorer.envs.<name>] sets holds for that environment instead.
type Config struct {
	// Advantage is the algorithm: grpo.
	Advantage string `toml:"advantage"`
	// NormalizeStd divides advantages by the standard deviation of the group's rewards.
	NormalizeStd bool `toml:"normalize_std"`
	// ZeroAdvantage is what happens to samples of which every advantage is zero: drop, or monitor (count them and train
	// on them all the same).
	ZeroAdvantage filter.Mode `toml:"zero_advantage"`
	// Envs overrides the above for single environments.
	Envs map[string]EnvConfig `toml:"envs"`
}

// EnvConfig overrides Config for one environment; what is left out stays.
type EnvConfig struct {
	Advantage     string      `toml:"advantage"`
	NormalizeStd  *bool       `toml:"normalize_std"`
	ZeroAdvantage filter.Mode `toml:"zero_advantage"`
}

// DefaultConfig is plain GRPO, without groups that have nothing to tell apart.
func DefaultConfig() Config { return Config{Advantage: advantage.GRPO, ZeroAdvantage: filter.Drop} }

// Validate checks the section and every override.
func (c Config) Validate() error {
	if _, err := newRules(c); err != nil {
		return fmt.Errorf("scorer.%w", err)
	}
	for _, env := range slices.Sorted(maps.Keys(c.Envs)) {
		if _, err := newRules(c.of(env)); err != nil {
			return fmt.Errorf("scorer.envs.%s.%w", env, err)
		}
	}
	return nil
}

// of is the configuration of one environment.
func (c Config) of(env string) Config {
	o := c.Envs[env]
	if o.Advantage != "" {
		c.Advantage = o.Advantage
	}
	if o.NormalizeStd != nil {
		c.NormalizeStd = *o.NormalizeStd
	}
	if o.ZeroAdvantage != "" {
		c.ZeroAdvantage = o.ZeroAdvantage
	}
	return c
}

// rules are what a configuration makes of a complete group.
type rules struct {
	algorithm advantage.Algorithm
	filters   []filter.Filter
	modes     []filter.Mode // of each filter
}

func newRules(c Config) (rules, error) {
	algorithm, err := advantage.New(c.Advantage, advantage.Options{NormalizeStd: c.NormalizeStd})
	if err != nil {
		return rules{}, fmt.Errorf("advantage = %w", err)
	}
	if err := c.ZeroAdvantage.Validate(); err != nil {
		return rules{}, fmt.Errorf("zero_advantage = %w", err)
	}
	return rules{algorithm, []filter.Filter{filter.Zero{}}, []filter.Mode{c.ZeroAdvantage}}, nil
}
