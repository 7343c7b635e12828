package envserver

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// lateGrace is how long a call of an environment may take to notice that its context has ended.
const lateGrace = time.Second

// An episode plays an env.Session under deadlines. Its calls are made one after the other, each by a goroutine that ends with
// it, so that an episode which waits for the policy has none; if one does not return, the rollout goes on without it, and the
// session is closed should it ever return.
type episode struct {
	session  *env.Session  // under busy
	busy     sync.Mutex    // held by the call that is made
	closed   chan struct{} // when the session is
	limit    time.Duration // of one call
	maxBytes int           // that it may say at once
	maxStuck int           // calls of the environment that hang
	overdue  *overdue      // of the environment
	stuck    bool          // a call has not returned
}

func (p *player) newEpisode() *episode {
	return &episode{closed: make(chan struct{}), limit: p.envTimeout, maxBytes: p.maxBytes, maxStuck: p.maxStuck, overdue: p.overdue}
}

// enter makes a call's goroutine the only one that is in the environment's code, until it leaves. Not to leave in time is counted.
func (e *episode) enter() (leave func()) {
	e.busy.Lock()
	late := time.AfterFunc(e.limit+lateGrace, func() { e.overdue.calls.Add(1) })
	return func() {
		if !late.Stop() {
			e.overdue.calls.Add(-1)
		}
		e.busy.Unlock()
	}
}

// close closes the session once its last call has returned; nothing is called any more.
func (e *episode) close() {
	go func() {
		defer close(e.closed)
		defer e.enter()()
		if e.session != nil {
			_ = e.session.Close() // the rollout is over, and its trace does not depend on it
		}
	}()
}

// tearDown is close, and waits until the session is closed, so that episodes which are slow to end hold up new ones: as long
// as one call may take, and not at all where one has not returned or ctx has ended.
func (e *episode) tearDown(ctx context.Context) {
	e.close()
	if e.stuck {
		return
	}
	select {
	case <-e.closed:
	case <-ctx.Done():
	case <-time.After(e.limit):
	}
}

// noAnswer is a call of an environment that took too long.
type noAnswer struct {
	what  string
	limit time.Duration
}

func (n *noAnswer) Error() string { return fmt.Sprintf("%s: no answer in %v", n.what, n.limit) }

// do makes one call under the deadline; a panic becomes an error. After an error the episode can only be closed.
func do[T any](ctx context.Context, e *episode, what string, f func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	type result struct {
		v   T
		err error
	}
	done := make(chan result, 1)
	go func() {
		defer e.enter()()
		r := result{err: errGone}
		defer func() {
			if v := recover(); v != nil {
				r.err = &env.PanicError{Value: v, Stack: string(debug.Stack())}
			}
			r.err = inWords(r.err)
			done <- r
		}()
		// Its time begins when it does: thousands may wait for a processor before it.
		timed, stop := context.WithTimeoutCause(ctx, e.limit, &noAnswer{what, e.limit})
		defer stop()
		defer context.AfterFunc(timed, func() { cancel(context.Cause(timed)) })()
		r.v, r.err = f(timed)
	}()
	select {
	case r := <-done:
		return r.v, r.err
	case <-ctx.Done():
	}
	select {
	case r := <-done:
		return r.v, r.err
	case <-time.After(lateGrace):
		e.stuck = true
		var zero T
		return zero, context.Cause(ctx)
	}
}

// opening is what the start of an episode tells.
type opening struct {
	task   json.RawMessage
	prompt []env.Message
	tools  []env.Tool
	agents []string // where there are several
}

// begin starts the session. An empty task is looked up. Where too many calls of the environment hang nothing is begun.
func (e *episode) begin(ctx context.Context, environment env.Environment, task json.RawMessage, split env.Split, index int, seed int64) (opening, error) {
	if err := e.overdue.check(e.maxStuck); err != nil {
		return opening{}, err
	}
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
		open := opening{task, e.session.Prompt(), e.session.Tools(), e.session.Agents()}
		return open, open.check(e.maxBytes)
	})
}

func (e *episode) reply(ctx context.Context, m env.Message) (env.Turn, error) {
	return do(ctx, e, "reply", func(ctx context.Context) (env.Turn, error) {
		turn, err := e.session.Reply(ctx, m)
		if err == nil {
			err = checkMessages(turn.Messages, e.maxBytes)
		}
		return turn, err
	})
}

func (e *episode) score(ctx context.Context) (env.Score, error) {
	return do(ctx, e, "score", func(ctx context.Context) (env.Score, error) { return e.session.Score(ctx) })
}
