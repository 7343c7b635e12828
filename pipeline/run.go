package pipeline

import (
	"fmt"
	"regexp"
)

var name = regexp.MustCompile(`^[A-Za-z0-9_-]{1,100}$`)

// ValidName reports whether a run, an environment, an eval or a frozen policy may have the name: dots and slashes separate
// the parts of topics, groups, transactional ids and keys.
func ValidName(s string) bool { return name.MatchString(s) }

// RunConfig is what every stage of a run must agree on: the section [run].
type RunConfig struct {
	// Name prefixes the run's topics and names its folder.
	Name string `toml:"name"`
	// Seed of everything random: env mix, task order, sampling, weights at the start.
	Seed int64 `toml:"seed"`
	// MaxSteps is the number of optimizer steps after which the run ends.
	MaxSteps int64 `toml:"max_steps"`
	// MaxAsyncLevel is how many packed steps may wait for the trainer while tasks are still emitted; 0 is ordered mode:
	// strictly on-policy, and the same seed gives the same run.
	MaxAsyncLevel int `toml:"max_async_level"`
	// MaxOffPolicySteps bounds (s-1) - policy_start of every sample of step s (I3).
	MaxOffPolicySteps int `toml:"max_off_policy_steps"`
	// BatchSize is the number of emitted rollouts at which a step is cut.
	BatchSize int `toml:"batch_size"`
	// BatchTokens cuts a step earlier, at this many tokens; 0 for no such limit.
	BatchTokens int `toml:"batch_tokens"`
	// SeqLen is the number of tokens of a micro-batch, and the longest sample.
	SeqLen int `toml:"seq_len"`
	// Ranks is the number of data-parallel trainers: the partitions of batches.
	Ranks int `toml:"ranks"`
	// TracePartitions is the number of partitions of traces, and so of scorers that can share the work.
	TracePartitions int `toml:"trace_partitions"`
	// TaskPartitions is the number of partitions of each tasks.<env>, and so of servers of one environment.
	TaskPartitions int `toml:"task_partitions"`
}

// DefaultRunConfig is a small asynchronous run.
func DefaultRunConfig() RunConfig {
	return RunConfig{
		Name: "prl", Seed: 1, MaxSteps: 100, MaxAsyncLevel: 1, MaxOffPolicySteps: 2, BatchSize: 256, SeqLen: 4096,
		Ranks: 1, TracePartitions: 3, TaskPartitions: 16,
	}
}

// Ordered reports whether the run is in ordered mode.
func (c RunConfig) Ordered() bool { return c.MaxAsyncLevel == 0 }

// Validate checks the section on its own.
func (c RunConfig) Validate() error {
	switch {
	case !ValidName(c.Name):
		return fmt.Errorf("run.name = %q: letters, digits, dashes and underscores (it prefixes topics with a dot)", c.Name)
	case c.MaxSteps < 1:
		return fmt.Errorf("run.max_steps = %d: at least 1", c.MaxSteps)
	case c.MaxAsyncLevel < 0:
		return fmt.Errorf("run.max_async_level = %d: 0 for ordered mode, or more", c.MaxAsyncLevel)
	case c.MaxAsyncLevel > c.MaxOffPolicySteps:
		return fmt.Errorf("run.max_async_level = %d is above run.max_off_policy_steps = %d: every batch would be stale; raise the latter", c.MaxAsyncLevel, c.MaxOffPolicySteps)
	case c.BatchSize < 1:
		return fmt.Errorf("run.batch_size = %d: at least 1", c.BatchSize)
	case c.BatchTokens < 0:
		return fmt.Errorf("run.batch_tokens = %d: 0 for no limit, or more", c.BatchTokens)
	case c.SeqLen < 2:
		return fmt.Errorf("run.seq_len = %d: at least 2", c.SeqLen)
	case c.Ranks < 1:
		return fmt.Errorf("run.ranks = %d: at least 1", c.Ranks)
	case c.TracePartitions < 1 || c.TaskPartitions < 1:
		return fmt.Errorf("run.trace_partitions = %d, run.task_partitions = %d: at least 1", c.TracePartitions, c.TaskPartitions)
	}
	return nil
}
