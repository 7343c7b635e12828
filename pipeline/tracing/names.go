package tracing

// Names of spans.
const (
	TaskSpan        = "task"
	RolloutSpan     = "rollout"
	SetupSpan       = "setup"
	CallSpan        = "model call"
	GenerateSpan    = "generate"
	ProbeSpan       = "probe"
	EnvironmentSpan = "environment"
	ScoreSpan       = "score" // by the environment
	TeachSpan       = "teach"
	EndSpan         = "end" // of a rollout that the emitter gave up
	ScoreGroupSpan  = "score group"
	ScoredSpan      = "scored"
	OutcomeSpan     = "outcome"
	TrainedSpan     = "trained"
	PackSpan        = "pack"
	TrainSpan       = "train"
	PublishSpan     = "publish"
)

// Task is the span of a task that asks for a rollout, of whose trace c is the root. Its parent is the rollout that failed before.
func (c Context) Task(attempt int) Span {
	if attempt <= 0 {
		return Span{Context: c, Name: TaskSpan}
	}
	return Span{Context: c.Child(TaskSpan, attempt), Parent: c.Played(attempt - 1).Span, Name: TaskSpan}
}

// Played is the span of a rollout that is played, of whose trace c is the root.
func (c Context) Played(attempt int) Context { return c.Task(attempt).Child(RolloutSpan) }

// Scored is the span of a rollout's score, of whose trace c is the root.
func (c Context) Scored(attempt int) Span {
	return Span{Context: c.Child(ScoredSpan), Parent: c.Played(attempt).Span, Name: ScoredSpan}
}

// Outcome is the span of a rollout's fate, of whose trace c is the root.
func (c Context) Outcome() Span {
	return Span{Context: c.Child(OutcomeSpan), Parent: c.Child(ScoredSpan).Span, Name: OutcomeSpan}
}

// Trained is the span of a rollout's training, of whose trace c is the root.
func (c Context) Trained() Span {
	return Span{Context: c.Child(TrainedSpan), Parent: c.Child(OutcomeSpan).Span, Name: TrainedSpan}
}
