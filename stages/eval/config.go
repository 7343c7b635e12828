package eval

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
)

// Config is a section [evals.<name>]: what is measured, how, and how often.
type Config struct {
	// Env is the environment, the name of a section [envs.<name>].
	Env string `toml:"env"`
	// Examples is the number of held-out tasks, from First on. Where the environment has fewer they come again, with
	// other seeds.
	Examples int `toml:"examples"`
	// First is the held-out task of the first example, from 0: several suites can share an environment's tasks.
	First int64 `toml:"first"`
	// K is the number of rollouts of each example.
	K int `toml:"k"`
	// Temperature of sampling; 0 is greedy.
	Temperature float64 `toml:"temperature"`
	// MaxTokens and MaxRolloutTokens are as in [envs.<name>]; 0 for those of the environment.
	MaxTokens        int `toml:"max_tokens"`
	MaxRolloutTokens int `toml:"max_rollout_tokens"`
	// PassThreshold is the reward at which a rollout counts as correct, for pass@k.
	PassThreshold float64 `toml:"pass_threshold"`
	// Interval says which policy versions are measured: its multiples, the first (0, or that of another run with which this one
	// began) and the final one; 0 for these two only.
	Interval int64 `toml:"interval"`
	// Timeout is how long a rollout may take, from its start.
	Timeout pipeline.Duration `toml:"timeout"`
	// GroupTimeout is how long an example may be open, queues included: above timeout + emitter.env_lost. An eval by hand
	// waits as long for its environment to be announced.
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
	case c.First < 0:
		return fmt.Errorf("evals.%s.first = %d: 0 for the first held-out task, or more", name, c.First)
	case c.K < 1 || c.K > maxK:
		return fmt.Errorf("evals.%s.k = %d: 1 to %d", name, c.K, maxK)
	case !(c.Temperature == 0 || c.Temperature >= 0.01 && c.Temperature <= 10):
		return fmt.Errorf("evals.%s.temperature = %v: 0 for greedy, or 0.01 to 10", name, c.Temperature)
	case c.MaxTokens < 0 || c.MaxRolloutTokens < 0:
		return fmt.Errorf("evals.%s.max_tokens = %d, max_rollout_tokens = %d: 0 for those of the environment, or more", name, c.MaxTokens, c.MaxRolloutTokens)
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

// limits are the token limits of the eval's tasks, as EnvConfig.Limits gives them.
func (c Config) limits(run pipeline.RunConfig, env emitter.EnvConfig) (maxTokens, maxRolloutTokens int) {
	if c.MaxTokens > 0 {
		env.MaxTokens = c.MaxTokens
	}
	if c.MaxRolloutTokens > 0 {
		env.MaxRolloutTokens = c.MaxRolloutTokens
	}
	return env.Limits(run)
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
		if pipeline.EvalByHand(name) {
			return fmt.Errorf("evals.%q: names that begin so are those of evals by hand; choose another", name)
		}
		if c.MaxRolloutTokens > run.SeqLen {
			return fmt.Errorf("evals.%s.max_rollout_tokens = %d is above run.seq_len = %d, the longest sequence that is served", name, c.MaxRolloutTokens, run.SeqLen)
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

// Due reports whether a version is measured; end is what End says of it.
func (c Config) Due(version int64, end bool) bool {
	return end || c.Interval > 0 && version%c.Interval == 0
}

// End reports whether a version is the first or the last of its run: every eval measures those.
func End(v *schemas.PolicyVersion) bool { return v.Version == 0 || v.FromRun != "" || v.Final }
