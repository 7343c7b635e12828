package cleanup

import (
	"fmt"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// Config is the section [cleanup].
type Config struct {
	// Every is the time between two passes. 0 leaves clean-up out of --stage all, and makes --stage cleanup a single pass.
	Every pipeline.Duration `toml:"every"`
	// Grace is how old a blob must be to be deleted: longer than any record takes from its blob to its commit.
	Grace pipeline.Duration `toml:"grace"`
	// KeepVersions is the number of newest policy versions whose weights are kept.
	KeepVersions int64 `toml:"keep_versions"`
	// KeepEvery keeps the weights, and the checkpoint if there is one, of every version that is a multiple of it; 0 for none.
	KeepEvery int64 `toml:"keep_every"`
}

// minGrace is above the age that a blob may have when a record comes to name it anew, and the time in which records are
// prepared and committed: five minutes each, and one for a transaction.
const minGrace = pipeline.Duration(15 * time.Minute)

// DefaultConfig does nothing until it is asked to.
func DefaultConfig() Config {
	return Config{Grace: pipeline.Duration(time.Hour), KeepVersions: 20, KeepEvery: 100}
}

// Validate checks the section on its own.
func (c Config) Validate() error {
	switch {
	case c.Every < 0:
		return fmt.Errorf("cleanup.every = %v: 0s for never, or more", c.Every)
	case c.Grace < minGrace:
		return fmt.Errorf("cleanup.grace = %v: at least %v, or blobs go whose records are being written", c.Grace, minGrace)
	case c.KeepVersions < 1:
		return fmt.Errorf("cleanup.keep_versions = %d: at least 1", c.KeepVersions)
	case c.KeepEvery < 0:
		return fmt.Errorf("cleanup.keep_every = %d: 0 for none, or more", c.KeepEvery)
	}
	return nil
}

// agree checks the section with the run: rollouts may still ask for any version that is not stale.
func (c Config) agree(run pipeline.RunConfig) error {
	if need := int64(run.MaxOffPolicySteps + run.MaxAsyncLevel + 2); c.KeepVersions < need {
		return fmt.Errorf("cleanup.keep_versions = %d: at least %d with run.max_off_policy_steps = %d and run.max_async_level = %d", c.KeepVersions, need, run.MaxOffPolicySteps, run.MaxAsyncLevel)
	}
	return c.Validate()
}
