package eval

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/emitter"
)

// Config is a section [evals.<name>]: what is measured, how, and how often.
type Config struct {
	// Env is the environment.
	Env string `toml:"env"`
	// Examples is the number of held-out tasks, from the first on. Where the environment has fewer they come again, with
	// other seeds.
	Examples int `toml:"examples"`
	// K is the number of rollouts of each example.
	K int `toml:"k"`
	// Temperature of sampling; 0 is greedy.
	Temperature float64 `toml:"temperature"`
	// PassThreshold is the reward at which a rollout counts as correct, for pass@k.
	PassThreshold float64 `toml:"pass_threshold"`
	// Interval says which policy versions are measured: its multiples, version 0 and the final one; 0 for these two only.
	Interval int64 `toml:"interval"`
	// Timeout is how long a rollout may take, from its start.
	Timeout pipeline.Duration `toml:"timeout"`
	// GroupTimeout is how long an example may be open, queues included: above timeout + emitter.env_lost.
	GroupTimeout pipeline.Duration `toml:"group_timeout"`
	// Permits bounds the rollouts in flight.
	Permits int `toml:"permits"`
}

// DefaultConfig is what a section [evals.<name>] starts from: 512 greedy episodes every 20 versions.
func DefaultConfig() Config {
	return Config{
		Examples: 512, K: 1, PassThreshold: 1, Interval: 20, Permits: 512,
		Timeout: pipeline.Duration(5 * time.Minute), GroupTimeout: pipeline.Duration(20 * time.Minute),
	}
}

// Validate checks the section of the named eval on its own.
func (c Config) Validate(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("evals: an eval needs a name")
	case c.Env == "":
		return fmt.Errorf("evals.%s.env is empty: name the environment", name)
	case c.Examples < 1 || c.Examples > maxExamples:
		return fmt.Errorf("evals.%s.examples = %d: 1 to %d", name, c.Examples, maxExamples)
	case c.K < 1 || c.K > maxK:
		return fmt.Errorf("evals.%s.k = %d: 1 to %d", name, c.K, maxK)
	case !(c.Temperature == 0 || c.Temperature >= 0.01 && c.Temperature <= 10):
		return fmt.Errorf("evals.%s.temperature = %v: 0 for greedy, or 0.01 to 10", name, c.Temperature)
	case math.IsNaN(c.PassThreshold):
		return fmt.Errorf("evals.%s.pass_threshold = %v: a number", name, c.PassThreshold)
	case c.Interval < 0:
		return fmt.Errorf("evals.%s.interval = %d: 0 for version 0 and the last only, or more", name, c.Interval)
	case c.Timeout < pipeline.Duration(time.Millisecond):
		return fmt.Errorf("evals.%s.timeout = %v: at least 1ms", name, c.Timeout)
	case c.Permits < c.K:
		return fmt.Errorf("evals.%s.permits = %d: at least k = %d, or no example is ever played", name, c.Permits, c.K)
	}
	return nil
}

const (
	maxExamples = 1 << 20
	maxK        = 1 << 12
)

// Validate checks the sections [evals.*] with those they refer to.
func Validate(run pipeline.RunConfig, em emitter.Config, envs map[string]emitter.EnvConfig, evals map[string]Config) error {
	if err := emitter.Validate(run, em, envs); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(evals)) {
		c := evals[name]
		if err := c.Validate(name); err != nil {
			return err
		}
		if _, ok := envs[c.Env]; !ok {
			return fmt.Errorf("evals.%s.env = %q: no section [envs.%s]", name, c.Env, c.Env)
		}
		if c.GroupTimeout <= c.Timeout+em.EnvLost {
			return fmt.Errorf("evals.%s.group_timeout = %v: above timeout + emitter.env_lost = %v, or examples end while their rollouts may still run", name, c.GroupTimeout, c.Timeout+em.EnvLost)
		}
	}
	return nil
}

// Due reports whether a version is measured.
func (c Config) Due(version int64, final bool) bool {
	return version == 0 || final || c.Interval > 0 && version%c.Interval == 0
}
