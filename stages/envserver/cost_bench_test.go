package envserver

import (
	"context"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs/echo"
	"github.com/prl-project/prl/stages/envserver/envs/tooluse"
	"github.com/prl-project/prl/stages/inference"
)

// A trial is an environment and what a policy without latency says in it, whatever it sees.
type trial struct {
	name        string
	environment env.Environment
	says        string
	turns       int
}

// trials are an environment with one turn, of 200 characters, and one with four calls of tools.
func trials(t testing.TB) []trial {
	short, tools := echo.Defaults(), tooluse.Defaults()
	short.Length, tools.Turns, tools.MaxCalls = 200, 4, 4
	single, err := echo.New(short)
	if err != nil {
		t.Fatal(err)
	}
	several, err := tooluse.New(tools)
	if err != nil {
		t.Fatal(err)
	}
	const call = "I look at what has been ordered before I change anything.\n" + `<tool_call>{"name": "ListOrders", "arguments": {}}</tool_call>`
	return []trial{{"single-turn", single, strings.Repeat("prl ", 50), 1}, {"tools", several, call, 4}}
}

// instant answers at once, with the same tokens every time.
type instant struct {
	model
	answers inference.Completion
	calls   atomic.Int64
}

func (m *instant) Generate(context.Context, inference.Request) (inference.Completion, error) {
	m.calls.Add(1)
	return m.answers, nil
}

func (tr trial) model(t testing.TB) *instant {
	m := &instant{answers: spoken(tokenizer(t), tr.says, inference.Request{MaxTokens: 1 << 20})}
	m.answers.Versions = []schemas.VersionRun{{}}
	return m
}

// tasks are n rollouts of groups of their own.
func (tr trial) tasks(n int) []*schemas.Task {
	list := make([]*schemas.Task, n)
	for i := range list {
		list[i] = &schemas.Task{Env: tr.environment.Info().Name, GroupID: int64(i), GroupSize: 1, Split: schemas.SplitTrain, TaskIndex: int64(i % 500),
			GroupSeed: int64(i), Seed: int64(i), Temperature: 1, TopP: 1, MaxTokens: 1 << 12, MaxRolloutTokens: 1 << 15,
			TimeoutMs: time.Hour.Milliseconds(), MaxOffPolicySteps: -1}
	}
	return list
}

// played is the trace of a task as it is written.
func (tr trial) played(t testing.TB, p *player, task *schemas.Task) []byte {
	t.Helper()
	trace := p.play(context.Background(), task, nil)[0]
	if len(trace.Errors) > 0 || trace.Reward == nil {
		t.Fatalf("%s: errors %v, reward %v", tr.name, trace.Errors, trace.Reward)
	}
	data, err := schemas.Encode(trace)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// BenchmarkPlay is a rollout from its task to the bytes of its trace, without a broker and with a model that takes no time.
func BenchmarkPlay(b *testing.B) {
	for _, tr := range trials(b) {
		b.Run(tr.name, func(b *testing.B) {
			p, tasks := testPlayer(b, tr.environment, tr.model(b)), tr.tasks(500)
			i := 0
			for b.Loop() {
				b.SetBytes(int64(len(tr.played(b, p, tasks[i%len(tasks)]))))
				i++
			}
		})
	}
}

// A hall is a run for one trial, with a client that writes its tasks.
type hall struct {
	*pipeline.Runtime
	trial
	cl *kgo.Client
}

func newHall(b *testing.B, tr trial) hall {
	b.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cluster.Close)
	rt, err := runtimeAt(cluster.ListenAddrs(), b.TempDir(), slog.New(slog.DiscardHandler))
	if err != nil {
		b.Fatal(err)
	}
	rt.Run.TaskPartitions = pipeline.DefaultRunConfig().TaskPartitions
	if err := rt.SetUp(b.Context(), []string{tr.environment.Info().Name}); err != nil {
		b.Fatal(err)
	}
	publishPolicy(b, rt)
	return enter(b, rt, tr)
}

func enter(t testing.TB, rt *pipeline.Runtime, tr trial) hall {
	t.Helper()
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return hall{rt, tr, cl}
}

// records are tasks as they are written, in turn to all partitions.
func (h hall) records(t testing.TB, tasks []*schemas.Task) []*kgo.Record {
	t.Helper()
	topic := pipeline.TopicTasks(h.environment.Info().Name)
	recs := make([]*kgo.Record, len(tasks))
	for i, task := range tasks {
		var err error
		if recs[i], err = h.Encode(t.Context(), pipeline.Emission{Topic: topic, Partition: int32(i) % h.Partitions(topic), Value: task}); err != nil {
			t.Fatal(err)
		}
	}
	return recs
}

func (h hall) write(t testing.TB, recs []*kgo.Record) {
	t.Helper()
	if err := h.cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// traces waits until there are so many.
func (h hall) traces(t testing.TB, n int) {
	t.Helper()
	ctx, end := context.WithTimeout(t.Context(), deadline)
	defer end()
	for adm, written := kadm.NewClient(h.cl), 0; written < n; time.Sleep(5 * time.Millisecond) {
		ends, err := adm.ListEndOffsets(ctx, h.TopicName(pipeline.TopicTraces))
		if err != nil {
			t.Fatalf("%d traces of %d: %v", written, n, err)
		}
		written = 0
		ends.Each(func(o kadm.ListedOffset) { written += int(o.Offset) })
	}
}

// spent reports what n rollouts took, of this process: the broker is in it, too.
func spent(b *testing.B, n int, work func()) {
	b.Helper()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	cpu, start := cpuTime(b), time.Now()
	work()
	took := time.Since(start)
	cpu = cpuTime(b) - cpu
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(n)/took.Seconds(), "rollouts/s")
	b.ReportMetric(cpu.Seconds()*1000/float64(n), "cpu-ms/rollout")
	b.ReportMetric(float64(after.Mallocs-before.Mallocs)/float64(n), "allocs/rollout")
	b.ReportMetric(float64(after.TotalAlloc-before.TotalAlloc)/float64(n)/1024, "KiB/rollout")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// benchRollouts is how many rollouts are measured at once, and atOnce how many slots there are.
const (
	benchRollouts = 10_000
	benchAtOnce   = 1024
)

// BenchmarkServer is a whole environment server between tasks and traces on a broker, with a model that takes no time. It measures
// once: -benchtime 1x.
func BenchmarkServer(b *testing.B) {
	for _, tr := range trials(b) {
		b.Run(tr.name, func(b *testing.B) {
			for b.Loop() {
				h := newHall(b, tr)
				stop := serveAll(b, h.Runtime, map[string]env.Environment{tr.environment.Info().Name: tr.environment}, tr.model(b), nil,
					func(c *Config) { c.Concurrency = benchAtOnce })
				tasks := h.records(b, tr.tasks(2*benchRollouts))
				h.write(b, tasks[:benchAtOnce]) // it has begun, and has its memory
				h.traces(b, benchAtOnce)
				spent(b, benchRollouts, func() {
					h.write(b, tasks[benchAtOnce:][:benchRollouts])
					h.traces(b, benchAtOnce+benchRollouts)
				})
				stop()
			}
		})
	}
}

// BenchmarkBroker is what the broker takes for the same: the tasks are written and read, and traces of the same bytes are written, all
// at once as a server does it.
func BenchmarkBroker(b *testing.B) {
	for _, tr := range trials(b) {
		b.Run(tr.name, func(b *testing.B) {
			for b.Loop() {
				h := newHall(b, tr)
				list := tr.tasks(benchRollouts)
				p := testPlayer(b, tr.environment, tr.model(b))
				topic := h.TopicName(pipeline.TopicTasks(tr.environment.Info().Name))
				tasks, traces := h.records(b, list), make([]*kgo.Record, len(list))
				for i, task := range list {
					traces[i] = &kgo.Record{Topic: h.TopicName(pipeline.TopicTraces), Partition: int32(i) % h.Partitions(pipeline.TopicTraces),
						Key: fmt.Append(nil, task.GroupID), Value: tr.played(b, p, task)}
				}
				in, err := h.Client(kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
				if err != nil {
					b.Fatal(err)
				}
				spent(b, benchRollouts, func() {
					var failed atomic.Pointer[error]
					produce := func(recs []*kgo.Record) {
						for _, r := range recs {
							h.cl.Produce(b.Context(), r, func(_ *kgo.Record, err error) {
								if err != nil {
									failed.Store(&err)
								}
							})
						}
					}
					produce(tasks)
					for read := 0; read < len(tasks) && failed.Load() == nil; {
						n := len(in.PollFetches(b.Context()).Records())
						produce(traces[read:][:n])
						read += n
					}
					if err := h.cl.Flush(b.Context()); err != nil {
						b.Fatal(err)
					}
					if err := failed.Load(); err != nil {
						b.Fatal(*err)
					}
				})
				in.Close()
			}
		})
	}
}
