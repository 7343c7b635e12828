package schemas

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

// Splits of an environment's tasks.
const (
	SplitTrain = "train"
	SplitEval  = "eval"
)
