package envserver

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// A server plays the tasks of a host, says so on envs, and a stop is told to the host whose rollouts then begin anew elsewhere.
func TestServerOfAHost(t *testing.T) {
	rt, _, _ := testRun(t)
	m := says(tokenizer(t), "one", "two")
	h := overHTTP(&game{info: env.Info{MaxTurns: 2}, reply: goOn}, nil)
	stop := serveEnv(t, rt, h, m)
	produce(t, rt, pipeline.TopicTasks("game"), tasks(20, nil)...)
	for _, r := range read(t, rt, pipeline.TopicTraces, covers(20)) {
		trace := r.Value.(*schemas.Trace)
		scored(t, trace)
		if n := strings.Count(contents(trace), "assistant"); n != 2 || !trace.Truncated || *trace.PolicyStart != 3 {
			t.Errorf("%d replies, truncated %v, version %d: %s", n, trace.Truncated, *trace.PolicyStart, contents(trace))
		}
	}
	info := read(t, rt, pipeline.TopicEnvs, count(1))[0].Value.(*schemas.EnvInfo)
	if info.Env != "game" || info.GroupScoring || info.MaxTurns != 2 {
		t.Errorf("%+v", info)
	}
	stop()

	begun, told := make(chan struct{}, 1), make(chan error, 1)
	h.run = func(ctx context.Context, job env.Job) (env.Outcome, error) {
		begun <- struct{}{}
		<-ctx.Done()
		told <- context.Cause(ctx)
		return env.Outcome{}, ctx.Err()
	}
	late := tasks(1, func(_ int, task *schemas.Task) { task.GroupID = 20 })
	produce(t, rt, pipeline.TopicTasks("game"), late...)
	stop = serveAll(t, rt, map[string]env.Environment{"game": h}, m, nil, func(c *Config) { c.Drain = pipeline.Duration(time.Millisecond) })
	<-begun
	stop()
	if err := <-told; err != errStopped {
		t.Errorf("the host is told %v", err)
	}
	stop = serveEnv(t, rt, overHTTP(&game{}, nil), m)
	read(t, rt, pipeline.TopicTraces, covers(21))
	stop()
}

// groupHost is a host that would score groups.
type groupHost struct{ harness }

func (groupHost) ScoreGroup(context.Context, json.RawMessage, []env.Rollout) ([]env.Score, error) {
	return nil, nil
}

func TestHostsScoreNoGroups(t *testing.T) {
	rt, _, _ := testRun(t)
	_, err := New(rt, DefaultConfig(), map[string]env.Environment{"game": groupHost{hosting(1, nil)}}, &model{}, nil)
	if err == nil || !strings.Contains(err.Error(), "cannot score groups") {
		t.Error(err)
	}
}
