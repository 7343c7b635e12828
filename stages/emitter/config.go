package emitter

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// Config is the section [emitter].
type Config struct {
	// Permits bounds the rollouts of open groups; 0 for (max_async_level + 2) · batch_size + the largest group. Ordered
	// mode has no use for it.
	Permits int `toml:"permits"`
	// MaxAttempts is the highest attempt of a rollout that the scorer may ask for again; 0 for none.
	MaxAttempts int `toml:"max_attempts"`
	// EnvLost is how long an environment may be silent until it gets no more tasks (servers speak every 5 s).
	EnvLost pipeline.Duration `toml:"env_lost"`
	// TasksPerTick bounds the tasks written ten times a second. A group is never split.
	TasksPerTick int `toml:"tasks_per_tick"`
	// Mix chooses the environment of the next group; nil for WeightedRoundRobin.
	Mix EnvMixStrategy `toml:"-"`
}

// DefaultConfig lets a run go as far ahead as run.max_async_level wants.
func DefaultConfig() Config {
	return Config{MaxAttempts: 2, EnvLost: pipeline.Duration(30 * time.Second), TasksPerTick: 2048}
}

// Validate checks the section on its own.
func (c Config) Validate() error {
	switch {
	case c.Permits < 0:
		return fmt.Errorf("emitter.permits = %d: 0 for the default, or more", c.Permits)
	case c.MaxAttempts < 0:
		return fmt.Errorf("emitter.max_attempts = %d: 0 for no refills, or more", c.MaxAttempts)
	case c.EnvLost < pipeline.Duration(10*time.Second):
		return fmt.Errorf("emitter.env_lost = %v: at least 10s, since environment servers speak every 5s", c.EnvLost)
	case c.TasksPerTick < 1:
		return fmt.Errorf("emitter.tasks_per_tick = %d: at least 1", c.TasksPerTick)
	}
	return nil
}

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
	// Timeout is how long a rollout may take, from its start.
	Timeout pipeline.Duration `toml:"timeout"`
	// GroupTimeout is how long a group may be open, queues included: above timeout + emitter.env_lost.
	GroupTimeout pipeline.Duration `toml:"group_timeout"`
	// Options are the environment's own, for its server.
	Options map[string]any `toml:"options"`
}

// DefaultEnvConfig is what a section [envs.<name>] starts from.
func DefaultEnvConfig() EnvConfig {
	return EnvConfig{GroupSize: 8, Temperature: 1, TopP: 1, Timeout: pipeline.Duration(5 * time.Minute), GroupTimeout: pipeline.Duration(20 * time.Minute)}
}

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
	case c.Timeout < pipeline.Duration(time.Millisecond):
		return fmt.Errorf("envs.%s.timeout = %v: at least 1ms", name, c.Timeout)
	}
	return nil
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

// Validate checks the sections [run], [emitter] and [envs.*] together.
func Validate(run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig) error {
	if err := run.Validate(); err != nil {
		return err
	}
	if err := cfg.Validate(); err != nil {
		return err
	}
	largest := 0
	var mix []MixEnv
	for _, name := range slices.Sorted(maps.Keys(envs)) {
		env := envs[name]
		if err := env.Validate(name); err != nil {
			return err
		}
		if env.MaxRolloutTokens > run.SeqLen {
			return fmt.Errorf("envs.%s.max_rollout_tokens = %d is above run.seq_len = %d: such a rollout could not be trained on", name, env.MaxRolloutTokens, run.SeqLen)
		}
		if env.GroupTimeout <= env.Timeout+cfg.EnvLost {
			return fmt.Errorf("envs.%s.group_timeout = %v: above timeout + emitter.env_lost = %v, or groups end while their rollouts may still run", name, env.GroupTimeout, env.Timeout+cfg.EnvLost)
		}
		largest = max(largest, env.GroupSize)
		mix = append(mix, MixEnv{Name: name, Ratio: env.Ratio, TrainTasks: 1})
	}
	if least := run.BatchSize + largest; cfg.Permits != 0 && cfg.Permits < least {
		return fmt.Errorf("emitter.permits = %d: at least run.batch_size + the largest group = %d, or no step is ever full", cfg.Permits, least)
	}
	_, err := cfg.mix().Weights(mix)
	return err
}

func (c Config) mix() EnvMixStrategy {
	if c.Mix == nil {
		return WeightedRoundRobin{}
	}
	return c.Mix
}

// permits is the bound on the rollouts of open groups.
func (c Config) permits(run pipeline.RunConfig, envs map[string]EnvConfig) int {
	if c.Permits > 0 {
		return c.Permits
	}
	largest := 0
	for _, env := range envs {
		largest = max(largest, env.GroupSize)
	}
	return (run.MaxAsyncLevel+2)*run.BatchSize + largest
}
