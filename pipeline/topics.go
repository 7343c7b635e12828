package pipeline

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/prl-project/prl/schemas"
)

// Names of a run's topics, without the run's prefix.
const (
	TopicEnvs       = "envs"
	TopicTraces     = "traces"
	TopicEvalTraces = "eval_traces"
	TopicSamples    = "samples"
	TopicOutcomes   = "outcomes"
	TopicRequests   = "requests"
	TopicBatches    = "batches"
	TopicPolicies   = "policies"
	TopicEvals      = "evals"
	TopicMetrics    = "metrics"
	TopicState      = "state"
	TopicDLQ        = "dlq"
	tasksPrefix     = "tasks."
)

// TopicTasks is the topic of an environment's tasks.
func TopicTasks(env string) string { return tasksPrefix + env }

// EnvOfTasks is the environment whose tasks a topic holds.
func EnvOfTasks(topic string) (env string, ok bool) { return strings.CutPrefix(topic, tasksPrefix) }

// ByHandPrefix begins the names of evals that somebody ran by hand; those of the run's own have no such prefix. An eval by
// hand may be left in the middle, and go on later: the groups it has not finished have no outcome, and what failed is
// asked for again.
const ByHandPrefix = "by-hand/"

// EvalByHand reports whether an eval of that name was run by hand.
func EvalByHand(eval string) bool { return strings.HasPrefix(eval, ByHandPrefix) }

// StateStages are the stages that keep state, in the order of their partitions of the topic state.
var StateStages = []string{"emitter", "envserver", "scorer", "packer", "eval"}

func statePartition(stage string) int32 { return int32(slices.Index(StateStages, stage)) }

// A Topic says how records of one topic are keyed and spread.
type Topic struct {
	Name      string // "tasks." for all topics of tasks
	Record    string // schema of its records; empty for dlq
	Compacted bool
	// Key of a record. Equal keys of a compacted topic replace each other.
	Key func(r schemas.Record) string
	// Partition of a record among n; nil where the writer says which (Out.EmitTo) or there is only one.
	Partition func(r schemas.Record, n int32) int32
	// ByHand tells records that somebody wrote by hand: they do not prove that a stage has worked. Nil where all do.
	ByHand func(r schemas.Record) bool
}

// Topics is the table of all topics of a run.
var Topics = []Topic{
	{Name: TopicEnvs, Record: "EnvInfo", Compacted: true, Key: keyOf(func(r *schemas.EnvInfo) string { return r.Env })},
	{Name: tasksPrefix, Record: "Task", Key: keyOf(func(r *schemas.Task) string { return groupKey(r.Eval, r.GroupID) })},
	{Name: TopicTraces, Record: "Trace", Key: keyOf(traceKey), Partition: func(r schemas.Record, n int32) int32 { return byGroup(r.(*schemas.Trace).GroupID, n) }},
	{Name: TopicEvalTraces, Record: "Trace", Key: keyOf(traceKey)},
	{Name: TopicSamples, Record: "SampleGroup", Key: keyOf(func(r *schemas.SampleGroup) string { return groupKey("", r.GroupID) })},
	{Name: TopicOutcomes, Record: "GroupOutcome", Key: keyOf(func(r *schemas.GroupOutcome) string { return groupKey(r.Eval, r.GroupID) })},
	{Name: TopicRequests, Record: "Request", Key: keyOf(requestKey)},
	{Name: TopicBatches, Record: "MicroBatch", Key: keyOf(func(r *schemas.MicroBatch) string { return strconv.Itoa(r.Rank) }),
		Partition: func(r schemas.Record, n int32) int32 { return int32(r.(*schemas.MicroBatch).Rank) % n }},
	{Name: TopicPolicies, Record: "PolicyVersion", Key: func(schemas.Record) string { return "policy" }},
	{Name: TopicEvals, Record: "EvalResult", Key: keyOf(func(r *schemas.EvalResult) string { return r.Env }), ByHand: func(r schemas.Record) bool {
		v, ok := r.(*schemas.EvalResult)
		return ok && EvalByHand(v.Eval)
	}},
	{Name: TopicMetrics, Record: "MetricPoint", Key: keyOf(func(r *schemas.MetricPoint) string { return r.Name })},
	{Name: TopicState, Record: "StageState", Compacted: true, Key: keyOf(func(r *schemas.StageState) string {
		return stateKey(r.Stage, r.Topic, int32(r.Partition))
	}), Partition: func(r schemas.Record, n int32) int32 { return statePartition(r.(*schemas.StageState).Stage) }},
	{Name: TopicDLQ},
}

// TopicOf finds the table entry of a topic.
func TopicOf(name string) (Topic, bool) {
	if strings.HasPrefix(name, tasksPrefix) {
		name = tasksPrefix
	}
	for _, t := range Topics {
		if t.Name == name {
			return t, true
		}
	}
	return Topic{}, false
}

// GroupOfKey reads the group a record's key names; ok is false where the key names none.
func GroupOfKey(key string) (eval string, id int64, ok bool) {
	if i := strings.LastIndexByte(key, '/'); i >= 0 {
		eval, key = key[:i], key[i+1:]
	}
	id, err := strconv.ParseInt(key, 10, 64)
	return eval, id, err == nil && id >= 0
}

func stateKey(stage, topic string, partition int32) string {
	return fmt.Sprintf("%s/%s/%d", stage, topic, partition)
}

func groupKey(eval string, id int64) string {
	if eval == "" {
		return strconv.FormatInt(id, 10)
	}
	return eval + "/" + strconv.FormatInt(id, 10)
}

func traceKey(r *schemas.Trace) string { return groupKey(r.Eval, r.GroupID) }

func requestKey(r *schemas.Request) string {
	if r.Kind == schemas.RequestWave {
		return fmt.Sprintf("wave/%d/%d", r.Step, r.Wave)
	}
	return fmt.Sprintf("refill/%d/%d/%d", r.GroupID, r.RolloutIndex, r.Attempt)
}

func byGroup(id int64, n int32) int32 { return int32(id % int64(n)) }

func keyOf[T schemas.Record](key func(T) string) func(schemas.Record) string {
	return func(r schemas.Record) string { return key(r.(T)) }
}
