package emitter

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
)

// What happens to rollouts that take long (pace.go).
const (
	// StalenessDrop emits as far ahead as it may; what turns out to be too old when its step comes is dropped.
	StalenessDrop = "drop"
	// StalenessWait emits only what cannot make an open group too old.
	StalenessWait = "wait"
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
	// Staleness is StalenessDrop or StalenessWait.
	Staleness string `toml:"staleness"`
	// ServingLag is the number of policy versions by which an inference server may be behind the newest while StalenessWait
	// still holds. A server that loads a version in less time than a step takes is at most 1 behind.
	ServingLag int `toml:"serving_lag"`
	// Mix chooses the environment of the next group: MixWeighted, MixProgress or MixTokens.
	Mix string `toml:"mix"`
	// Progress is what MixProgress needs to know.
	Progress ProgressConfig `toml:"progress"`
}

// DefaultConfig lets a run go as far ahead as run.max_async_level wants.
func DefaultConfig() Config {
	return Config{
		MaxAttempts: 2, EnvLost: pipeline.Duration(30 * time.Second), TasksPerTick: 2048,
		Staleness: StalenessDrop, ServingLag: 1, Mix: MixWeighted, Progress: DefaultProgressConfig(),
	}
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
	case c.Staleness != StalenessDrop && c.Staleness != StalenessWait:
		return fmt.Errorf("emitter.staleness = %q: %q or %q", c.Staleness, StalenessDrop, StalenessWait)
	case c.ServingLag < 0:
		return fmt.Errorf("emitter.serving_lag = %d: 0 for servers that are never behind, or more", c.ServingLag)
	case c.ServingLag != DefaultConfig().ServingLag && c.Staleness != StalenessWait:
		return fmt.Errorf("emitter.serving_lag = %d: only with emitter.staleness = %q", c.ServingLag, StalenessWait)
	case mixes[c.Mix] == nil:
		return fmt.Errorf("emitter.mix = %q: one of %q", c.Mix, slices.Sorted(maps.Keys(mixes)))
	case c.Progress != DefaultProgressConfig() && c.Mix != MixProgress:
		return fmt.Errorf("emitter.progress: only with emitter.mix = %q", MixProgress)
	}
	return c.Progress.validate()
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
	if cfg.Staleness == StalenessWait {
		if err := validateWait(run, cfg, envs); err != nil {
			return err
		}
	}
	_, err := mixes[cfg.Mix](cfg).Weights(mix)
	return err
}

// validateWait refuses what StalenessWait cannot keep its promise with.
func validateWait(run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig) error {
	switch {
	case run.Ordered():
		return fmt.Errorf("emitter.staleness = %q with run.max_async_level = 0: in ordered mode nothing goes stale; leave it out", cfg.Staleness)
	case run.BatchTokens > 0:
		return fmt.Errorf("emitter.staleness = %q with run.batch_tokens = %d: how many rollouts a step takes is then not known ahead; set it to 0", cfg.Staleness, run.BatchTokens)
	case cfg.ServingLag > run.MaxOffPolicySteps:
		return fmt.Errorf("emitter.serving_lag = %d is above run.max_off_policy_steps = %d: nothing could ever be emitted; raise the latter", cfg.ServingLag, run.MaxOffPolicySteps)
	}
	first := ""
	for _, name := range slices.Sorted(maps.Keys(envs)) {
		env := envs[name]
		if env.Ratio != nil && *env.Ratio == 0 {
			continue
		}
		if first == "" {
			first = name
		}
		if env.GroupSize != envs[first].GroupSize {
			return fmt.Errorf("envs.%s.group_size = %d, and that of %s is %d: emitter.staleness = %q needs equal ones, or a larger group could fill the last step that a smaller one may be in",
				name, env.GroupSize, first, envs[first].GroupSize, cfg.Staleness)
		}
	}
	return nil
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
