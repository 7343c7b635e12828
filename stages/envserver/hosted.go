package envserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/stages/envserver/env"
)

// hosted lets a host play and score. The deadline is that of the policy's last answer; the host may take as long as one call of
// an environment beyond it.
//
// The rollout fails if the model did or the host was told to stop, whatever the host says; if the host did; and if the host ends
// without an answer of the policy, or behind a request that had to be refused. A host that fails behind a limit on the policy, and neither panics nor is
// lost, only did not score what the policy did: the rollout is truncated and has no reward, and as it would come to the same
// limit again it is not tried again.
func (r *rollout) hosted(ctx context.Context, host env.Host, deadline time.Time) error {
	defer r.record()
	task, err := r.hostTask(ctx, host)
	if err != nil {
		return fault(ctx, errorEnvironment, err)
	}
	running, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	end := deadline.Add(r.envTimeout)
	running, cancel := context.WithDeadlineCause(running, end,
		fmt.Errorf("the rollout has not ended in %v after the policy's time was over", r.envTimeout))
	defer cancel()
	d := newDesk(running, r, deadline, fail)
	base, shut := r.endpoint.open(d)
	run, done := span(running, tracing.EnvironmentSpan)
	out, err := r.runHost(run, host, env.Job{
		Task: task, Split: env.Split(r.task.Split), Index: int(r.task.TaskIndex), Seed: r.task.GroupSeed,
		Model: env.Endpoint{
			BaseURL: base, Model: d.name, Temperature: r.task.Temperature, TopP: r.task.TopP,
			MaxTokens: r.task.MaxTokens, MaxContext: r.task.MaxRolloutTokens,
		},
	}, time.Until(end)+lateGrace)
	done(err)
	late := context.Cause(running)
	shut()
	d.clock.tell(&r.trace.Timing)
	switch {
	case d.failed != nil:
		return fault(ctx, d.failed.kind, d.failed.err)
	case late != nil: // it was told to stop, and what it says then is no score
		return fault(ctx, errorEnvironment, late)
	case err != nil && r.cut != "" && len(r.talk.replies) > 0 && !out.gone:
		out.Info = unscored(err)
	case err != nil && d.refused != nil:
		return fault(ctx, errorEnvironment, fmt.Errorf("%w; its last request to the model was refused: %w", err, d.refused))
	case err != nil:
		return fault(ctx, errorEnvironment, err)
	case d.refused != nil:
		return fault(ctx, errorEnvironment, fmt.Errorf("its last request to the model was refused: %w", d.refused))
	case len(r.talk.replies) == 0:
		return fault(ctx, errorEnvironment, errors.New("it has ended without an answer of the policy"))
	}
	for i, tokens := range out.Replies {
		if !slices.ContainsFunc(r.talk.replies, func(said reply) bool { return slices.Equal(said.tokens, tokens) }) {
			return fault(ctx, errorEnvironment, fmt.Errorf("reply %d, of %d tokens, is none that the policy sampled", i, len(tokens)))
		}
	}
	r.trace.Truncated, r.trace.Info = out.Truncated || r.cut != "", valid(string(out.Info))
	if err := r.take(out.Score); err != nil {
		return fault(ctx, errorEnvironment, err)
	}
	return nil
}

// unscored is the info of a rollout whose host failed behind a limit on the policy.
func unscored(err error) json.RawMessage {
	info, err := json.Marshal(map[string]string{"unscored": valid(err.Error())})
	if err != nil {
		return nil
	}
	return info
}

// hostTask is the task's JSON, looked up where the task has none.
func (r *rollout) hostTask(ctx context.Context, host env.Host) (json.RawMessage, error) {
	task := json.RawMessage(r.task.Task)
	if len(task) == 0 {
		e := r.newEpisode()
		defer e.close()
		var err error
		if task, err = do(ctx, e, "task", func(context.Context) (json.RawMessage, error) {
			task, err := host.Task(env.Split(r.task.Split), int(r.task.TaskIndex))
			return task, errors.Join(err, checkSize("a task", len(task), r.maxBytes))
		}); err != nil {
			return nil, fmt.Errorf("task %s %d: %w", r.task.Split, r.task.TaskIndex, err)
		}
	}
	r.trace.Task = valid(string(task))
	return task, nil
}

// hostEnd is how a host's call ended.
type hostEnd struct {
	env.Outcome
	gone bool // by a panic, or lost: no limit explains that
}

// runHost waits for a host no longer than the limit.
func (r *rollout) runHost(ctx context.Context, host env.Host, job env.Job, limit time.Duration) (hostEnd, error) {
	e := r.newEpisode()
	defer e.close()
	if err := e.overdue.check(e.maxStuck); err != nil {
		return hostEnd{}, err
	}
	e.limit = limit
	return do(ctx, e, "run", func(ctx context.Context) (hostEnd, error) {
		out, err := env.RunHost(ctx, host, job)
		return hostEnd{out, errors.As(err, new(*env.PanicError)) || errors.As(err, new(*env.LostError))}, err
	})
}
