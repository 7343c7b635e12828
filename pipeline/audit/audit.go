// Package audit reads what a run has left behind, every record of every topic and every row of the Parquet files, and
// says where an invariant of the design (I1 to I8) does not hold. It decides nothing the way the stages do: what it holds
// a record against is computed here, from the records that the record must follow from.
//
// What is checked, by invariant:
//
//	I1  training groups are numbered from 0 without a hole; each group, and each attempt of a rollout, is emitted once; a
//	    group has at most one SampleGroup and one outcome, and exactly one when the run has ended; the outcome speaks of
//	    each rollout and agrees with the SampleGroup; an eval has one result per version. An eval by hand may
//	    have been left in the middle, with groups that have no outcome
//	I2  a sample is in one micro-batch of one step, the one its outcome names; no sample of a packed group is left out;
//	    what a stage has finished has led to its output; steps are complete on every rank; the policy versions are the
//	    chain 0, 1, 2, … with the offsets of their batches; every record is in Parquet exactly once, with its values
//	I3  the bound on off-policy steps, with policy_start computed again from the versions that sampled each token
//	I4  state records never go back, and what was finished stays finished: one chain, no fork. That a kill changes no
//	    result is what the harness around this package shows
//	I5  a record that cannot be read is in dlq, with its reason, or has not been taken yet; dlq names records that exist
//	I6  samples come from the first trace without error, advantages follow from the rewards, groups and samples are in
//	    the order of their ids; ordered mode keeps to its waves. That packing is a function of the log is the packer's test
//	I7  masks mark sampled tokens, whose log-probabilities are finite and not above 0 and whose temperature is the
//	    task's; tokens, masks, log-probabilities and weights of a micro-batch are those of the SampleGroup, tokens and
//	    log-probabilities of the SampleGroup are those of a branch of a trace, and what is trained of them was sampled; a
//	    sampled node that branches share is trained in the first
//	I8  a task's JSON is the same in Task, Trace and Parquet
//
// What a crash may leave is no violation: several traces of one rollout (the first without error counts), a rollout that
// ran twice, a record that is in dlq twice. Of each record some bytes are kept: a group costs about 1 KB, a row 32 bytes.
package audit

import (
	"context"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
)

// Config says what to audit.
type Config struct {
	// Runtime names the run, its brokers and its blob store.
	Runtime *pipeline.Runtime
	// Envs are the environments of the run: those with a topic of tasks.
	Envs []string
	// Parquet is the sink's folder; empty where the files are not looked at.
	Parquet string
	// Ended says that the run is over and its stages have stopped, the sink last: then nothing may be missing. Of a run
	// that goes on, or was stopped before its end, the last records may have led to nothing yet; it must stand still, too.
	Ended bool
	// Weights holds every version's blobs to their SHA-256, which reads all of them.
	Weights bool
	// Advantages says by environment how its advantages follow from the rewards; where it does not, they are not checked.
	Advantages map[string]Advantage
	// Branchwise are the environments of which single branches of a rollout may be left out, by a filter.
	Branchwise map[string]bool
	// Injected marks records that no stage wrote, such as a fault harness's: they must be read, refused or ignored
	// properly, and are held to nothing themselves. Nil for none.
	Injected func(r *kgo.Record) bool
	// Progress is told what is looked at, and how many records were read so far; nil for nobody.
	Progress func(what string, records int)
}

// An Advantage says how a rollout's advantage follows from the rewards of its group, where the environment does not
// reward single tokens.
type Advantage string

const (
	// MeanFree is the reward less the group's mean.
	MeanFree Advantage = "mean_free"
	// Standardized is MeanFree divided by the population standard deviation.
	Standardized Advantage = "standardized"
)

// Run audits a run. The error says that it could not be read; what is wrong with it is in the report.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	a, read := newAuditor(cfg), 0
	tell := func(what string) {
		if cfg.Progress != nil {
			cfg.Progress(what, read)
		}
	}
	for _, topic := range topicsOf(cfg.Envs) {
		tell(topic)
		if err := readTopic(ctx, cfg, topic, func(r record) { read++; a.add(r); tell(topic) }); err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
	}
	if cfg.Weights {
		tell("the blobs")
		if err := a.checkBlobs(ctx, cfg.Runtime.Blobs); err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
	}
	if cfg.Parquet != "" {
		tell("the Parquet files")
		if err := a.readParquet(ctx, cfg.Parquet); err != nil {
			return nil, fmt.Errorf("audit: %w", err)
		}
	}
	return a.finish(), nil
}

// topicsOf lists the run's topics in the order the auditor wants them: first what says how far others were read,
// and where the run began.
func topicsOf(envs []string) []string {
	topics := []string{pipeline.TopicDLQ, pipeline.TopicState, pipeline.TopicPolicies}
	for _, e := range slices.Sorted(slices.Values(envs)) {
		topics = append(topics, pipeline.TopicTasks(e))
	}
	for _, t := range pipeline.Topics {
		if _, tasks := pipeline.EnvOfTasks(t.Name); !tasks && !slices.Contains(topics, t.Name) {
			topics = append(topics, t.Name)
		}
	}
	return topics
}
