package try

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"strings"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// A line is one that was read, without its end; or why none can be.
type line struct {
	text string
	err  error
}

// readLines reads in the background, so that a signal is heard while nobody types. The channel is closed at the end of in. A
// read that blocks when ctx ends is left alone; in is the process's own.
func readLines(ctx context.Context, in io.Reader) <-chan line {
	lines := make(chan line)
	send := func(l line) bool {
		select {
		case lines <- l:
			return true
		case <-ctx.Done():
			return false
		}
	}
	go func() {
		defer close(lines)
		for r := bufio.NewReader(in); ; {
			text, err := r.ReadString('\n')
			if text != "" || err == nil {
				if !send(line{text: strings.TrimRight(text, "\r\n")}) {
					return
				}
			}
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				send(line{err: err})
				return
			}
		}
	}()
	return lines
}

// limited makes one call of an environment under its time limit.
func limited[T any](ctx context.Context, limit time.Duration, call func(context.Context) (T, error)) (T, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("the environment has not answered in %v (envserver.env_timeout)", limit))
	defer cancel()
	v, err := call(ctx)
	if err != nil && errors.Is(err, ctx.Err()) {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	return v, err
}

// recovered turns a panic of an environment outside its session into an error.
func recovered(err *error) {
	if v := recover(); v != nil {
		*err = &env.PanicError{Value: v, Stack: string(debug.Stack())}
	}
}
