package envserver

import (
	"context"
	"encoding/json"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// An environment's own bounds on time hold beside the task's: the stricter one cuts.
func TestDeadlinesOfTheEnvironment(t *testing.T) {
	tok := tokenizer(t)
	for _, test := range []struct {
		name    string
		info    env.Info
		task    int64 // its timeout in ms
		seconds int   // of a model call
		turns   int
		took    time.Duration
	}{
		{"none", env.Info{}, 60_000, 25, 3, 60 * time.Second},
		{"of the rollout", env.Info{Timeout: 40 * time.Second}, 60_000, 25, 2, 40 * time.Second},
		{"of the rollout, the task's is stricter", env.Info{Timeout: 90 * time.Second}, 60_000, 25, 3, 60 * time.Second},
		{"of a turn", env.Info{TurnTimeout: 10 * time.Second}, 60_000, 3, 7, 28 * time.Second},
		{"of a turn, the rollout's is stricter", env.Info{TurnTimeout: 10 * time.Second, Timeout: 20 * time.Second}, 60_000, 3, 7, 20 * time.Second},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				m := &model{answer: func(ctx context.Context, call int, r inference.Request) (inference.Completion, error) {
					wait := time.Duration(test.seconds) * time.Second
					if call == 6 {
						wait = time.Hour
					}
					select {
					case <-time.After(wait):
						return spoken(tok, "hello", r), nil
					case <-ctx.Done():
						return inference.Completion{}, ctx.Err()
					}
				}}
				g, task := &game{info: test.info, reply: goOn}, testTask()
				g.info.MaxTurns, task.TimeoutMs = 50, test.task
				start := time.Now()
				trace := playOne(t, testPlayer(t, g, m), task)
				scored(t, trace)
				if !trace.Truncated || trace.StopReason != stopDeadline || len(m.requests) != test.turns || time.Since(start) != test.took {
					t.Errorf("stop %q after %d model calls and %v, want %d and %v", trace.StopReason, len(m.requests), time.Since(start), test.turns, test.took)
				}
			})
		})
	}
}

// slowGame takes its time to begin and to end.
type slowGame struct {
	game
	start, stop time.Duration
	closed      chan struct{}
}

func (g *slowGame) Start(context.Context, json.RawMessage, int64) (env.Episode, error) {
	time.Sleep(g.start)
	return &slowMatch{&match{game: &g.game}, g}, nil
}

type slowMatch struct {
	*match
	slow *slowGame
}

func (m *slowMatch) Close() error {
	time.Sleep(m.slow.stop)
	close(m.slow.closed)
	return nil
}

// The trace waits for the episode's tear-down, as long as a call may take, and says how long that and the set-up were.
func TestSetUpAndTearDown(t *testing.T) {
	for _, test := range []struct {
		name   string
		stop   time.Duration
		cancel bool // the rollout, at its model call
		want   time.Duration
	}{
		{"in time", 20 * time.Second, false, 20 * time.Second},
		{"too long", 3 * time.Minute, false, time.Minute},
		{"nobody waits for what is cancelled", 20 * time.Second, true, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &slowGame{start: 5 * time.Second, stop: test.stop, closed: make(chan struct{})}
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				m := &model{answer: func(ctx context.Context, _ int, r inference.Request) (inference.Completion, error) {
					if test.cancel {
						cancel(errDecided)
						return inference.Completion{}, ctx.Err()
					}
					return spoken(tokenizer(t), "hello", r), nil
				}}
				traces := testPlayer(t, g, m).play(ctx, testTask(), nil)
				timing := traces[0].Timing
				if timing.SetupMs != 5000 || timing.TeardownMs != float64(test.want.Milliseconds()) || timing.GenerationMs+timing.EnvironmentMs+timing.ScoringMs != 0 {
					t.Errorf("timing %+v, want a tear-down of %v", timing, test.want)
				}
				if test.cancel {
					failed(t, traces[0], schemas.ErrorCancelled, "")
				} else {
					scored(t, traces[0])
				}
				<-g.closed // it is closed whoever waits
			})
		})
	}
}
