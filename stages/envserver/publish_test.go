package envserver

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// A trace that no topic can hold becomes one that says so, and its task is finished.
func TestTraceTooLargeForATopic(t *testing.T) {
	huge := strings.Repeat("all work and no play ", pipeline.TopicRecordBytes/20)
	g := &game{reply: func(context.Context, int, env.Message) (env.Turn, error) {
		return env.Turn{Done: true, Messages: []env.Message{env.User(huge)}}, nil
	}}
	rt, _, _ := testRun(t)
	stop := serveAll(t, rt, map[string]env.Environment{"game": g}, says(tokenizer(t), "hi"), nil, func(c *Config) { c.MaxEnvBytes = 2 * len(huge) })
	produce(t, rt, pipeline.TopicTasks("game"), tasks(1, nil)...)
	trace := read(t, rt, pipeline.TopicTraces, count(1))[0].Value.(*schemas.Trace)
	failed(t, trace, errorUnrecordable, "cannot be recorded")
	stop()
	if state := states(t, rt)["envserver/tasks.game/0"]; state.LowOffset != 1 {
		t.Errorf("the task is not finished: low offset %d", state.LowOffset)
	}
}

// A broker that refuses a record for its size gets a smaller one; one that has another reason gets the same again.
func TestBrokerRefusesATrace(t *testing.T) {
	for _, c := range []struct {
		refusal *kerr.Error
		errors  int
	}{
		{kerr.MessageTooLarge, 1},
		{kerr.PolicyViolation, 0},
	} {
		t.Run(c.refusal.Message, func(t *testing.T) {
			rt, cluster, _ := testRun(t)
			refused := cluster.Fault(kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: rt.TopicName(pipeline.TopicTraces), Err: c.refusal})
			stop := serveEnv(t, rt, &game{}, says(tokenizer(t), "hi"))
			produce(t, rt, pipeline.TopicTasks("game"), tasks(1, nil)...)
			trace := read(t, rt, pipeline.TopicTraces, count(1))[0].Value.(*schemas.Trace)
			stop()
			if refused.Hits() != 1 {
				t.Fatal("nothing was refused")
			}
			if len(trace.Errors) != c.errors {
				t.Errorf("errors %+v", trace.Errors)
			}
		})
	}
}

// A task of which not even a failure could be recorded is refused before it is played.
func TestUnrecordableTaskIsRefused(t *testing.T) {
	c, err := newCore(newPool(1, 5), testPlayer(t, &game{}, nil), nil)
	if err != nil {
		t.Fatal(err)
	}
	task := testTask()
	task.Eval, task.Task = strings.Repeat("e", pipeline.MaxRecordBytes), "{}"
	if err := c.Process(pipeline.Record{Value: task}, nil); err == nil || !strings.Contains(err.Error(), "recorded") {
		t.Errorf("error %.100v", err)
	}
	task.Eval, task.Task = "e", strings.Repeat("t", pipeline.MaxRecordBytes)
	if err := c.Process(pipeline.Record{Value: task}, nil); err != nil {
		t.Errorf("a long task: %v", err)
	}
}

// A broker that takes traces and is never heard of again holds up no stop.
func TestStopWithoutABroker(t *testing.T) {
	rt, cluster, _ := testRun(t)
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	tried := make(chan struct{})
	var once sync.Once
	cluster.ControlKey(int16(kmsg.Produce), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		once.Do(func() { close(tried) })
		return nil, errors.New("the broker is gone"), true
	})
	ctx, stop := context.WithCancelCause(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- (&publisher{rt, cl}).publish(ctx, []*schemas.Trace{newTrace(tasks(1, nil)[0].(*schemas.Task), 0, "", "1", "model", "one")})
	}()
	<-tried
	stop(errStopped)
	select {
	case err := <-ended:
		if !errors.Is(err, errStopped) {
			t.Errorf("it ended with %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("it waits for the broker")
	}
}
