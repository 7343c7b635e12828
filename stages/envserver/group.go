package envserver

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// play runs a task, one rollout or a whole group, and returns a trace of each; nil if the server stopped meanwhile, or the
// environment had no room. sampled may be called by several goroutines at once.
func (p *player) play(ctx context.Context, t *schemas.Task, sampled func(version int64)) []*schemas.Trace {
	scorer, whole := p.environment.(env.GroupScorer)
	if whole != (t.RolloutIndex < 0) {
		return p.refuse(t, &failure{errorEnvironment, fmt.Errorf("group scoring is %v in this version of the environment, the task asks for the opposite", whole)})
	}
	var rollouts []*rollout
	run := groupRun(t)
	for _, i := range indices(t) {
		r := p.newRollout(t, i, run, sampled)
		r.spans = record(ctx, t, i)
		rollouts = append(rollouts, r)
	}
	errs := playAll(ctx, rollouts, p.atOnce)
	if whole && errors.Join(errs...) == nil {
		errs[0] = p.scoreGroup(ctx, scorer, rollouts)
	}
	first := -1
	for i, err := range errs {
		if errors.Is(err, errStopped) || errors.Is(err, errFull) {
			return nil
		}
		if err != nil && first < 0 {
			first = i
		}
	}
	var traces []*schemas.Trace
	for i, r := range rollouts {
		switch {
		case errs[i] != nil:
			fail(r.trace, errs[i])
		case first >= 0: // a group is scored whole or not at all
			fail(r.trace, fmt.Errorf("rollout %d of the group failed: %w", rollouts[first].trace.RolloutIndex, errs[first]))
		}
		traces = append(traces, r.trace)
	}
	return traces
}

// playAll plays rollouts side by side, as many as there is room for; when one fails, the others end too. It returns their errors.
func playAll(ctx context.Context, rollouts []*rollout, room func() int) []error {
	if len(rollouts) == 1 {
		return []error{rollouts[0].guarded(ctx)} // thousands run at once: none has a goroutine more than it needs
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(rollouts))
	var all errgroup.Group
	if room != nil {
		all.SetLimit(max(room(), 1))
	}
	for i, r := range rollouts {
		all.Go(func() error {
			if errs[i] = r.guarded(ctx); errs[i] != nil {
				cancel(errs[i])
			}
			return errs[i]
		})
	}
	_ = all.Wait() // each has its own
	return errs
}

// guarded is play, with a panic as a failure: one rollout must not end the process, and with it all others.
func (r *rollout) guarded(ctx context.Context) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &failure{errorInternal, &env.PanicError{Value: v, Stack: string(debug.Stack())}}
		}
	}()
	return r.play(ctx)
}

func (p *player) scoreGroup(ctx context.Context, scorer env.GroupScorer, rollouts []*rollout) error {
	group := make([]env.Rollout, len(rollouts))
	for i, r := range rollouts {
		group[i] = env.Rollout{Messages: r.talk.messages, Score: r.score}
		for _, reply := range r.talk.replies {
			group[i].Replies = append(group[i].Replies, reply.message)
		}
	}
	e := p.newEpisode()
	defer e.close()
	start := time.Now()
	scores, err := do(ctx, e, "score group", func(ctx context.Context) ([]env.Score, error) {
		return env.ScoreGroup(ctx, scorer, json.RawMessage(rollouts[0].trace.Task), group)
	})
	for i, r := range rollouts {
		r.trace.Timing.ScoringMs += since(start)
		if err == nil {
			err = r.take(scores[i])
		}
	}
	if err != nil {
		return fault(ctx, errorEnvironment, err)
	}
	return nil
}

// refuse is the traces of a task that is not played.
func (p *player) refuse(t *schemas.Task, why error) []*schemas.Trace {
	var traces []*schemas.Trace
	run := groupRun(t)
	for _, i := range indices(t) {
		trace := newTrace(t, i, run, p.info.Version, p.model, p.instance)
		fail(trace, why)
		traces = append(traces, trace)
	}
	return traces
}

// indices are the rollouts a task asks for.
func indices(t *schemas.Task) []int {
	if t.RolloutIndex >= 0 {
		return []int{t.RolloutIndex}
	}
	all := make([]int, t.GroupSize)
	for i := range all {
		all[i] = i
	}
	return all
}

// groupRun names one run of a task for a whole group; it is empty for others.
func groupRun(t *schemas.Task) string {
	if t.RolloutIndex >= 0 {
		return ""
	}
	return rand.Text()
}
