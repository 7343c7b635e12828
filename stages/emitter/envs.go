package emitter

import (
	"fmt"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// EnvConfig is a section [envs.<name>]: how an environment is trained on.
type EnvConfig struct {
	// Ratio is the environment's weight in the mix; 0 for never. Set it for all environments or for none: then the number
	// of training tasks is the weight.
	Ratio *float64 `toml:"ratio"`
	// GroupSize is the number of rollouts of one task, which are compared with each other.
	GroupSize int `toml:"group_size"`
	// Temperature of sampling, above 0.
	Temperature float64 `toml:"temperature"`
	// TopP must be 1: log-probabilities are those of the whole distribution.
	TopP float64 `toml:"top_p"`
	// MaxTokens is the number of tokens a model call may return; 0 for as many as the rollout may have.
	MaxTokens int `toml:"max_tokens"`
	// MaxRolloutTokens is the number of tokens after which a rollout is cut; 0 for run.seq_len.
	MaxRolloutTokens int `toml:"max_rollout_tokens"`
	// Concurrency is how many rollouts of the environment one environment server runs at once; 0 for as many as
	// envserver.concurrency, or the environment itself, has room for. The others wait, and group_timeout counts meanwhile. The
	// environment server reads it; the emitter does not.
	Concurrency int `toml:"concurrency"`
	// Timeout is how long a rollout may take, from its start.
	Timeout pipeline.Duration `toml:"timeout"`
	// GroupTimeout is how long a group may be open, queues included: above timeout + emitter.env_lost.
	GroupTimeout pipeline.Duration `toml:"group_timeout"`
	// Policy is the frozen policy that plays, the name of a section [frozen.<name>]; empty for the policy that is trained.
	// Its rollouts have no policy version and never go stale.
	Policy string `toml:"policy"`
	// Teacher gives each sampled token of a finished rollout a log-probability of its own, before the trace is written: the
	// name of a section [frozen.<name>], or "self" for the live policy that is shown a demonstration; empty for none. The
	// teacher must have room for the longest rollout, "self" for the demonstration besides. The environment server reads it;
	// the emitter does not.
	Teacher string `toml:"teacher"`
	// Curriculum chooses the task of the next group.
	Curriculum CurriculumConfig `toml:"curriculum"`
	// Source is where the environment is, if it is not one of the binary's own: "python:module:Class" is a class in Python. The
	// environment server reads it; the emitter does not.
	Source string `toml:"source"`
	// Options are the environment's own, for its server.
	Options map[string]any `toml:"options"`
}

// DefaultEnvConfig is what a section [envs.<name>] starts from.
func DefaultEnvConfig() EnvConfig {
	return EnvConfig{
		GroupSize: 8, Temperature: 1, TopP: 1, Timeout: pipeline.Duration(5 * time.Minute), GroupTimeout: pipeline.Duration(20 * time.Minute),
		Curriculum: DefaultCurriculumConfig(),
	}
}

// Frozen reports whether a frozen policy plays the environment.
func (c EnvConfig) Frozen() bool { return c.Policy != "" }

// Validate checks the section of the named environment on its own.
func (c EnvConfig) Validate(name string) error {
	switch {
	case c.Ratio != nil && !(*c.Ratio >= 0 && *c.Ratio < 1e9):
		return fmt.Errorf("envs.%s.ratio = %v: 0 for never, or more", name, *c.Ratio)
	case c.GroupSize < 1:
		return fmt.Errorf("envs.%s.group_size = %d: at least 1", name, c.GroupSize)
	case !(c.Temperature >= 0.01 && c.Temperature <= 10):
		return fmt.Errorf("envs.%s.temperature = %v: 0.01 to 10 (the greedy policy has no log-probabilities to train on)", name, c.Temperature)
	case c.TopP != 1:
		return fmt.Errorf("envs.%s.top_p = %v: training needs 1", name, c.TopP)
	case c.MaxTokens < 0:
		return fmt.Errorf("envs.%s.max_tokens = %d: 0 for as many as the rollout may have, or more", name, c.MaxTokens)
	case c.MaxRolloutTokens < 0:
		return fmt.Errorf("envs.%s.max_rollout_tokens = %d: 0 for run.seq_len, or more", name, c.MaxRolloutTokens)
	case c.Concurrency < 0:
		return fmt.Errorf("envs.%s.concurrency = %d: 0 for no limit of its own, or more", name, c.Concurrency)
	case c.Timeout < pipeline.Duration(time.Millisecond):
		return fmt.Errorf("envs.%s.timeout = %v: at least 1ms", name, c.Timeout)
	case c.Policy == schemas.TeacherSelf || c.Policy != "" && !pipeline.ValidName(c.Policy):
		return fmt.Errorf("envs.%s.policy = %q: the name of a section [frozen.<name>], of letters, digits, dashes and underscores, and not %q", name, c.Policy, schemas.TeacherSelf)
	case c.Teacher != "" && !pipeline.ValidName(c.Teacher):
		return fmt.Errorf("envs.%s.teacher = %q: the name of a section [frozen.<name>], of letters, digits, dashes and underscores, or %q", name, c.Teacher, schemas.TeacherSelf)
	}
	return c.Curriculum.validate("envs."+name+".curriculum", c.GroupSize)
}

// Limits are the token limits of a task: those of one model call, and of the whole rollout.
func (c EnvConfig) Limits(run pipeline.RunConfig) (maxTokens, maxRolloutTokens int) {
	maxRolloutTokens = c.MaxRolloutTokens
	if maxRolloutTokens == 0 {
		maxRolloutTokens = run.SeqLen
	}
	if maxTokens = c.MaxTokens; maxTokens == 0 {
		maxTokens = maxRolloutTokens
	}
	return min(maxTokens, maxRolloutTokens), maxRolloutTokens
}
