package schemas

import "strings"

// What a Request asks for.
const (
	RequestWave   = "wave"
	RequestRefill = "refill"
)

// Fates of a group and of a rollout. A group's SampleGroup.Reason is one of those it can end with before the packer.
const (
	FatePacked    = "packed"    // trained, in the step the outcome names
	FateFiltered  = "filtered"  // taken by the filter the outcome names
	FateStale     = "stale"     // too many off-policy steps at the cut, or on the way
	FateOverlong  = "overlong"  // longer than seq_len
	FateErrored   = "errored"   // a rollout failed for good
	FateTimedOut  = "timed_out" // open too long
	FateCancelled = "cancelled" // the run ended
	FateEvaluated = "evaluated" // counted in an EvalResult
)

// Types of a TraceError that stages decide by; environments and models have their own beside them.
const (
	ErrorTimedOut  = "timed_out"
	ErrorCancelled = "cancelled"
	ErrorStale     = "stale"
	ErrorCrashed   = "crashed"
)

// TeacherSelf is, where the name of a frozen policy is asked for as teacher, the policy that is trained.
const TeacherSelf = "self"

// FrozenPolicy is the name of the frozen policy that a trace calls recorded: name@<first 8 hex digits of the SHA-256 of its
// weights>, or the name alone where the weights are not known.
func FrozenPolicy(recorded string) string {
	name, _, _ := strings.Cut(recorded, "@")
	return name
}

// Kinds of a PolicyVersion.
const (
	KindFull  = "full"  // the whole weights
	KindDelta = "delta" // the tensors that changed
	KindLoRA  = "lora"  // an adapter
)

// WeightsSHA256 names the weights that a version stands for, however they are published: the SHA-256 of the whole weights,
// which is the same for a full version and for a delta that gives the same bytes. An adapter is named by its own.
func (r *PolicyVersion) WeightsSHA256() string {
	if r.Kind == KindDelta {
		return r.FullSHA256
	}
	return r.Weights.SHA256
}

// Splits of an environment's tasks.
const (
	SplitTrain = "train"
	SplitEval  = "eval"
)
