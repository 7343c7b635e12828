package envserver

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/logs"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference"
)

// TestFailuresAreLoggedInTheirEnvsName logs what environments fail at: the first of a second for all to see, every one at debug.
func TestFailuresAreLoggedInTheirEnvsName(t *testing.T) {
	var shown, all bytes.Buffer
	l := newFailureLog(&pipeline.Runtime{Log: logs.New(&shown, logs.Options{Format: logs.Text, Level: slog.LevelInfo, File: &all, FileLevel: slog.LevelDebug})})
	now := time.Unix(100, 0)
	l.now = func() time.Time { return now }
	fails := func(env string, index int) *schemas.Trace {
		return &schemas.Trace{Env: env, GroupID: 7, RolloutIndex: index, Errors: []schemas.TraceError{{Type: errorEnvironment, Message: "boom\nlevel=INFO \x1b[0m", Traceback: "line 1\nline 2"}}}
	}
	stale := fails("wordle", 9)
	stale.Errors[0].Type = schemas.ErrorStale
	l.traces([]*schemas.Trace{fails("wordle", 0), fails("wordle", 1), fails("catch", 0), {Env: "wordle"}, stale})
	now = now.Add(failureEvery)
	l.traces([]*schemas.Trace{fails("wordle", 2)})
	lines := strings.Split(strings.TrimSpace(shown.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "env=wordle group=7 rollout=0") || !strings.Contains(lines[1], "env=catch") || !strings.HasSuffix(lines[2], "others=1") {
		t.Errorf("shown:\n%s", shown.String())
	}
	if strings.Contains(shown.String(), "\x1b") || !strings.Contains(lines[0], `boom\nlevel=INFO \x1b[0m`) {
		t.Errorf("what the environment says is not quoted: %s", lines[0])
	}
	if n := strings.Count(all.String(), `msg="a rollout failed"`); n != 4 {
		t.Errorf("%d lines of 4 failures:\n%s", n, all.String())
	}
	if n := strings.Count(all.String(), "traceback="); n != 4 {
		t.Errorf("%d tracebacks of 4 failures:\n%s", n, all.String())
	}
}

// TestStopIsNoNews lets model calls fail, as they do when the model's server has heard of a stop: where this server hears of it, too,
// before it asks again, nobody is told, and the rollout begins anew.
func TestStopIsNoNews(t *testing.T) {
	const some = -1
	gone := &inference.Error{Status: http.StatusServiceUnavailable, Code: inference.CodeStopping, Message: "the server stops"}
	for _, c := range []struct {
		name  string
		err   error
		stops time.Duration // after the call; 0 for never
		told  int
		begun bool // anew
	}{
		{"nobody stops", gone, 0, 7, false},
		{"stops with it", gone, time.Millisecond, 0, true},
		{"stops later", gone, time.Second, some, true},
		{"never to be answered", &inference.Error{Status: http.StatusBadRequest, Code: inference.CodeInvalid}, 0, 1, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				called := time.Now()
				told := 0
				ask := caller{retries: 6, warn: func(string, error) { told++ }, stops: func() bool { return c.stops > 0 && time.Since(called) >= c.stops }}
				ask.model = &model{answer: func(context.Context, int, inference.Request) (inference.Completion, error) {
					return inference.Completion{}, c.err
				}}
				_, err := ask.generate(t.Context(), inference.Request{MaxTokens: 1})
				if told != c.told && (c.told != some || told == 0) || errors.Is(err, errStopped) != c.begun {
					t.Errorf("told %d times, and the error is %v", told, err)
				}
			})
		})
	}
}
