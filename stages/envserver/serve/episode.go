package serve

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Episode is an [env.Session] whose calls have a deadline. It is for one goroutine.
type Episode struct {
	session *env.Session
	limit   time.Duration
	lost    bool // a call has not returned; its goroutine has the session, and closes it
}

// lateGrace is how long a call of an environment may take to notice that its time is over.
const lateGrace = time.Second

// Begin starts an episode. An empty task is that of c.
func (s Served) Begin(ctx context.Context, c Chosen, task json.RawMessage) (*Episode, error) {
	e := &Episode{limit: s.Limit}
	_, err := within(ctx, e, "start", func(ctx context.Context) (none struct{}, err error) {
		if len(task) == 0 {
			if task, err = s.Env.Task(c.Split, c.Index); err != nil {
				return none, fmt.Errorf("task %d of split %s: %w", c.Index, c.Split, err)
			}
		}
		e.session, err = env.Begin(ctx, s.Env, task, c.Seed)
		return none, err
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Prompt is what the policy sees first.
func (e *Episode) Prompt() []env.Message { return e.session.Prompt() }

// Tools are those that the policy may call.
func (e *Episode) Tools() []env.Tool { return e.session.Tools() }

// Reply hands the episode what the policy said. After an error the episode can only be closed.
func (e *Episode) Reply(ctx context.Context, m env.Message) (env.Turn, error) {
	return within(ctx, e, "reply", func(ctx context.Context) (env.Turn, error) { return e.session.Reply(ctx, m) })
}

// Score ends the episode, if it was not done, and scores it.
func (e *Episode) Score(ctx context.Context) (env.Score, error) {
	return within(ctx, e, "score", func(ctx context.Context) (env.Score, error) { return e.session.Score(ctx) })
}

// Close releases what the episode holds, at any time, more than once.
func (e *Episode) Close() {
	_, _ = within(context.Background(), e, "close", func(context.Context) (struct{}, error) { return struct{}{}, e.session.Close() })
}

var errLost = errors.New("the environment has not answered in time before, and the episode was given up")

// within makes one call under the deadline; a panic becomes an error.
func within[T any](ctx context.Context, e *Episode, what string, call func(context.Context) (T, error)) (v T, err error) {
	if e.lost {
		return v, errLost
	}
	ctx, cancel := context.WithTimeoutCause(ctx, e.limit, fmt.Errorf("%s: the environment has not answered in %v", what, e.limit))
	defer cancel()
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	var settled atomic.Bool // by whoever is first: the call that has returned, or we who do not wait any more
	go func() {
		r := result{}
		r.v, r.err = guarded(ctx, call)
		if settled.CompareAndSwap(false, true) {
			done <- r
		} else if e.session != nil {
			_, _ = guarded(ctx, func(context.Context) (struct{}, error) { return struct{}{}, e.session.Close() })
		}
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done:
		if r.err != nil && errors.Is(r.err, ctx.Err()) {
			r.err = fmt.Errorf("%w: %w", context.Cause(ctx), r.err)
		}
		return r.v, r.err
	case <-time.After(lateGrace):
	}
	if settled.CompareAndSwap(false, true) {
		e.lost = true
		return v, context.Cause(ctx)
	}
	r := <-done
	return r.v, r.err
}

func guarded[T any](ctx context.Context, call func(context.Context) (T, error)) (v T, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = &env.PanicError{Value: p, Stack: string(debug.Stack())}
		}
	}()
	return call(ctx)
}

// Task is the JSON of a task.
func (s Served) Task(ctx context.Context, split env.Split, index int) (json.RawMessage, error) {
	return within(ctx, &Episode{limit: s.Limit}, "task", func(context.Context) (json.RawMessage, error) { return s.Env.Task(split, index) })
}

// Agents are those of an episode that has several.
func (e *Episode) Agents() []string { return e.session.Agents() }
