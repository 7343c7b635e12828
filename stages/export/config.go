package export

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
)

// Formats of the files.
const (
	JSONL   = "jsonl"
	Parquet = "parquet"
)

// AnyFate takes the rollouts of every decided group.
const AnyFate = "any"

// Config is the section [export]: which rollouts become conversations to train on, and where they go.
type Config struct {
	// Out is the folder that is made; empty for export in the run's folder.
	Out string `toml:"out"`
	// Formats are jsonl and parquet, or one of the two.
	Formats []string `toml:"formats"`
	// Force replaces a folder that is there.
	Force bool `toml:"force"`
	// Envs are the environments whose rollouts are taken; empty for all.
	Envs []string `toml:"envs"`
	// MinReward is the least reward of what is taken; not set, all are, those without a reward among them. Unit: as the environment's.
	MinReward *float64 `toml:"min_reward"`
	// Best is how many conversations of each task are taken, those with the highest rewards; 0 for all.
	Best int `toml:"best"`
	// Fate is what must have become of a rollout: packed (it was trained on), or any for whatever was decided.
	Fate string `toml:"fate"`
	// FromVersion and ToVersion are the lowest and the highest policy version that may have sampled its tokens; to -1: no bound.
	FromVersion int64 `toml:"from_version"`
	ToVersion   int64 `toml:"to_version"`
	// Truncated takes rollouts that a limit has cut, too.
	Truncated bool `toml:"truncated"`
	// Evals takes rollouts of evals, too. Whoever trains on them has no held-out tasks any more.
	Evals bool `toml:"evals"`
	// MaxTokens is the most tokens of a conversation, as the policy saw it; 0 for no bound.
	MaxTokens int `toml:"max_tokens"`
	// TestShare is the share of the tasks whose conversations go into a split of their own, test; 0 makes none.
	TestShare float64 `toml:"test_share"`
	// Seed decides which tasks these are.
	Seed int64 `toml:"seed"`
	// Follow writes on, from the topics, while the run goes on.
	Follow bool `toml:"follow"`
}

// DefaultConfig takes whatever was trained on and came to its end.
func DefaultConfig() Config {
	return Config{Formats: []string{JSONL, Parquet}, Fate: schemas.FatePacked, ToVersion: -1}
}

// Validate checks the section on its own.
func (c Config) Validate() error {
	for i, f := range c.Formats {
		if f != JSONL && f != Parquet || slices.Contains(c.Formats[:i], f) {
			return fmt.Errorf("export.formats = %q: %s, %s, or both", c.Formats, JSONL, Parquet)
		}
	}
	switch {
	case len(c.Formats) == 0:
		return fmt.Errorf("export.formats is empty: %s, %s, or both", JSONL, Parquet)
	case c.Follow && len(c.Formats) > 1:
		return fmt.Errorf("export.formats = [%s] with --follow, which writes one: choose it (--format)", strings.Join(c.Formats, ", "))
	case c.Follow && c.Best > 0:
		return fmt.Errorf("export.best = %d with --follow: which are the best of a task is known at the end; export then, or choose --min-reward", c.Best)
	case c.Follow && c.Force:
		return fmt.Errorf("--force with --follow, which goes on with what is there: remove the folder, or name another (--out)")
	case c.Fate != schemas.FatePacked && c.Fate != AnyFate:
		return fmt.Errorf("export.fate = %q: %s or %s", c.Fate, schemas.FatePacked, AnyFate)
	case c.MinReward != nil && math.IsNaN(*c.MinReward):
		return fmt.Errorf("export.min_reward is not a number")
	case c.Best < 0:
		return fmt.Errorf("export.best = %d: 0 for all, or more", c.Best)
	case c.FromVersion < 0:
		return fmt.Errorf("export.from_version = %d: a policy version", c.FromVersion)
	case c.ToVersion < -1 || c.ToVersion >= 0 && c.ToVersion < c.FromVersion:
		return fmt.Errorf("export.to_version = %d: -1 for no bound, or at least from_version = %d", c.ToVersion, c.FromVersion)
	case c.MaxTokens < 0:
		return fmt.Errorf("export.max_tokens = %d: 0 for no bound, or more", c.MaxTokens)
	case !(c.TestShare >= 0 && c.TestShare < 1):
		return fmt.Errorf("export.test_share = %g: from 0 to below 1", c.TestShare)
	}
	return nil
}
