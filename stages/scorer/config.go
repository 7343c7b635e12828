package scorer

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/scorer/advantage"
	"github.com/prl-project/prl/stages/scorer/filter"
)

// Settings say how groups are scored. README.md explains every algorithm and filter.
type Settings struct {
	// Advantage is the algorithm: grpo, max_rl, rloo, rae, hierarchical_grpo, opd, opsd, sft or echo.
	Advantage         string `toml:"advantage"`
	advantage.Options        // of the algorithms
	// Filters take samples that are not worth training on.
	Filters filter.Config `toml:"filters"`
	// Partial is what happens to a group of which rollouts failed: refill, train or drop.
	Partial Partial `toml:"partial"`
	// MinGroupSize is the least number of rollouts that are trained without the failed ones of their group, under
	// partial = "train".
	MinGroupSize int `toml:"min_group_size"`
}

// Config is the section [scorer].
type Config struct {
	Settings
	// Envs overrides the settings for single environments; what is left out stays.
	Envs map[string]map[string]any `toml:"envs"`
}

// DefaultConfig is plain GRPO, without groups that have nothing to tell apart; failed rollouts are asked for again.
func DefaultConfig() Config {
	return Config{Settings: Settings{
		Advantage: advantage.GRPO, Options: advantage.DefaultOptions(), Filters: filter.DefaultConfig(), Partial: Refill, MinGroupSize: 2,
	}}
}

// Of is the settings of one environment.
func (c Config) Of(env string) (Settings, error) {
	s := c.Settings
	overrides, ok := c.Envs[env]
	if !ok {
		return s, nil
	}
	text, err := toml.Marshal(overrides)
	if err == nil {
		err = toml.NewDecoder(bytes.NewReader(text)).DisallowUnknownFields().Decode(&s)
	}
	var unknown *toml.StrictMissingError
	var bad *toml.DecodeError
	switch {
	case errors.As(err, &unknown):
		return s, fmt.Errorf("%s: unknown key", strings.Join(unknown.Errors[0].Key(), "."))
	case errors.As(err, &bad):
		return s, fmt.Errorf("%s: %w", strings.Join(bad.Key(), "."), err)
	}
	return s, err
}

// rules are those of the environments that have some of their own; those of all others are at the empty name.
func (c Config) rules() (map[string]*rules, error) {
	all := map[string]*rules{}
	r, err := newRules(c.Settings)
	if err != nil {
		return nil, fmt.Errorf("scorer.%w", err)
	}
	all[""] = r
	for _, env := range slices.Sorted(maps.Keys(c.Envs)) {
		if env == "" {
			return nil, errors.New("scorer.envs has an environment without a name")
		}
		s, err := c.Of(env)
		if err == nil {
			all[env], err = newRules(s)
		}
		if err != nil {
			return nil, fmt.Errorf("scorer.envs.%s.%w", env, err)
		}
	}
	return all, nil
}

// Needs is what valid settings need of the run and of the environment.
func (s Settings) Needs() advantage.Needs {
	_, needs, _ := advantage.New(s.Advantage, s.Options) // of invalid ones: nothing
	return needs
}

// Validate checks the section and every override, and holds them to the run.
func Validate(run pipeline.RunConfig, cfg Config) error {
	_, err := rulesFor(run, cfg)
	return err
}

// rulesFor are the rules of a valid section.
func rulesFor(run pipeline.RunConfig, cfg Config) (map[string]*rules, error) {
	all, err := cfg.rules()
	if err != nil {
		return nil, err
	}
	for _, env := range slices.Sorted(maps.Keys(all)) {
		if all[env].needs.Order && run.TracePartitions != 1 {
			return nil, fmt.Errorf("run.trace_partitions = %d: advantage = %q (%s) keeps a moving average, which needs one order of all groups: set it to 1", run.TracePartitions, all[env].Advantage, section(env))
		}
	}
	return all, nil
}

func section(env string) string {
	if env == "" {
		return "[scorer]"
	}
	return "[scorer.envs." + env + "]"
}

// rules are what settings make of a complete group.
type rules struct {
	Settings
	algorithm advantage.Algorithm
	needs     advantage.Needs
	filters   []filter.Filter
}

func newRules(s Settings) (*rules, error) {
	algorithm, needs, err := advantage.New(s.Advantage, s.Options)
	if err != nil {
		return nil, err
	}
	filters, err := s.Filters.Filters()
	if err != nil {
		return nil, fmt.Errorf("filters.%w", err)
	}
	if err := s.Partial.validate(); err != nil {
		return nil, err
	}
	if s.MinGroupSize < 1 {
		return nil, fmt.Errorf("min_group_size = %d: at least 1", s.MinGroupSize)
	}
	return &rules{s, algorithm, needs, filters}, nil
}
