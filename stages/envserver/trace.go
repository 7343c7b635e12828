package envserver

import (
	"context"
	"errors"
	"strings"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// Types of a TraceError that this stage adds to those of package schemas.
const (
	errorEnvironment  = "environment"
	errorModel        = "model"
	errorInternal     = "internal"     // a panic of this stage's own code
	errorUnrecordable = "unrecordable" // the trace is too large for a topic, or no valid record
)

// Why a limit ended an episode.
const (
	stopMaxTokens = "max_tokens"
	stopDeadline  = "deadline"
	stopMaxTurns  = "max_turns"
)

// A failure ends a rollout without a reward; kind is the type of its TraceError.
type failure struct {
	kind string
	err  error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

// Causes of cancelled contexts.
var (
	errDeadline = errors.New("the rollout's time is over")
	errStopped  = errors.New("the server stops")
	errStale    = &failure{schemas.ErrorStale, errors.New("the policy has moved on by more than max_off_policy_steps since the first token")}
	errFull     = errors.New("the environment has no room")
	errDecided  = &failure{schemas.ErrorCancelled, errors.New("the group's outcome is known")}
)

// fault is what went wrong in a rollout: why ctx was cancelled, if it was, and otherwise err as a failure of the kind.
func fault(ctx context.Context, kind string, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return &failure{kind, err}
}

// newTrace is the trace of one rollout of a task before it begins.
func newTrace(t *schemas.Task, index int, run, version, model, instance string) *schemas.Trace {
	trace := &schemas.Trace{
		Env: t.Env, EnvVersion: version, Eval: t.Eval, GroupID: t.GroupID, GroupSize: t.GroupSize, RolloutIndex: index,
		Attempt: t.Attempt, GroupRun: run, Split: t.Split, TaskIndex: t.TaskIndex, Task: t.Task, GroupSeed: t.GroupSeed,
		Seed: t.Seed, PinVersion: t.PinVersion, Step: t.Step, Wave: t.Wave, WaveFirst: t.WaveFirst, WaveLast: t.WaveLast,
		Policy: t.Policy, Model: model, Instance: instance,
	}
	if t.RolloutIndex < 0 {
		trace.Seed = mix(t.Seed, -1-index)
	}
	return trace
}

// fail takes the reward from a trace and says why.
func fail(t *schemas.Trace, err error) {
	kind := errorEnvironment
	var f *failure
	if errors.As(err, &f) {
		kind = f.kind
	}
	e := schemas.TraceError{Type: kind, Message: cut(valid(err.Error()), mostMessage)}
	var traced env.Traced
	if errors.As(err, &traced) {
		e.Traceback = cut(valid(traced.Traceback()), mostTraceback)
	}
	t.Errors = append(t.Errors, e)
	t.Reward, t.Rewards, t.Metrics, t.StopReason, t.Truncated = nil, nil, nil, "", false
}

// valid is text that Avro's strings can hold.
func valid(text string) string { return strings.ToValidUTF8(text, "\uFFFD") }
