package envserver

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// lateGrace is how long a call of an environment may take to notice that its context has ended.
const lateGrace = time.Second

// An episode plays an env.Session under deadlines. All calls are made by one goroutine of its own; if one does not
// return, the rollout goes on without it, and the session is closed should it ever return.
type episode struct {
	session *env.Session // of the goroutine alone
	calls   chan func()
	limit   time.Duration // of one call
}

func newEpisode(limit time.Duration) *episode {
	e := &episode{calls: make(chan func()), limit: limit}
	go func() {
		for call := range e.calls {
			call()
		}
		if e.session != nil {
			_ = e.session.Close() // the rollout is over, and its trace does not depend on it
		}
	}()
	return e
}

// close lets the goroutine end, and nothing is called any more.
func (e *episode) close() { close(e.calls) }

// do makes one call under the deadline; a panic becomes an error. After an error the episode can only be closed.
func do[T any](ctx context.Context, e *episode, what string, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, e.limit, fmt.Errorf("%s: no answer in %v", what, e.limit))
	defer cancel()
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	e.calls <- func() {
		var r result
		defer func() {
			if v := recover(); v != nil {
				r.err = &env.PanicError{Value: v, Stack: string(debug.Stack())}
			}
			done <- r
		}()
		r.v, r.err = f(ctx)
	}
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done:
		return r.v, r.err
	case <-time.After(lateGrace):
		var zero T
		return zero, context.Cause(ctx)
	}
}

// opening is what the start of an episode tells.
type opening struct {
	task   json.RawMessage
	prompt []env.Message
	tools  []env.Tool
}

// begin starts the session. An empty task is looked up.
func (e *episode) begin(ctx context.Context, environment env.Environment, task json.RawMessage, split env.Split, index int, seed int64) (opening, error) {
	return do(ctx, e, "start", func(ctx context.Context) (opening, error) {
		var err error
		if len(task) == 0 {
			if task, err = environment.Task(split, index); err != nil {
				return opening{}, fmt.Errorf("task %s %d: %w", split, index, err)
			}
		}
		if e.session, err = env.Begin(ctx, environment, task, seed); err != nil {
			return opening{task: task}, err
		}
		return opening{task, e.session.Prompt(), e.session.Tools()}, nil
	})
}

func (e *episode) reply(ctx context.Context, m env.Message) (env.Turn, error) {
	return do(ctx, e, "reply", func(ctx context.Context) (env.Turn, error) { return e.session.Reply(ctx, m) })
}

func (e *episode) score(ctx context.Context) (env.Score, error) {
	return do(ctx, e, "score", func(ctx context.Context) (env.Score, error) { return e.session.Score(ctx) })
}
