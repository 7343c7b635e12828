package sink

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

// testDeadline bounds what a test waits for.
const testDeadline = 30 * time.Second

// newRun is a run on a broker of its own, with its topics.
func newRun(t testing.TB) *pipeline.Runtime {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	run := pipeline.DefaultRunConfig()
	run.Name = "test"
	rt := pipelinetest.Runtime(t, cluster.ListenAddrs(), run)
	if err := rt.SetUp(t.Context(), []string{"catch"}); err != nil {
		t.Fatal(err)
	}
	return rt
}

func client(t testing.TB, rt *pipeline.Runtime, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := rt.Client(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// produce writes n points to metrics, named by name.
func produce(t testing.TB, rt *pipeline.Runtime, cl *kgo.Client, name string, n int) {
	t.Helper()
	for i := range n {
		rec, err := rt.Encode(t.Context(), pipeline.Emission{Topic: pipeline.TopicMetrics, Value: &schemas.MetricPoint{Name: fmt.Sprintf("%s%d", name, i)}})
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// transaction writes n points to metrics in one transaction.
func transaction(t testing.TB, rt *pipeline.Runtime, cl *kgo.Client, name string, n int, end kgo.TransactionEndTry) {
	t.Helper()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, rt, cl, name, n)
	if err := cl.EndTransaction(t.Context(), end); err != nil {
		t.Fatal(err)
	}
}

func config(dir string) Config {
	cfg := DefaultConfig()
	cfg.Dir, cfg.MaxAge = dir, pipeline.Duration(time.Hour)
	return cfg
}

// start runs a sink; the returned function stops it and gives its error.
func start(t testing.TB, rt *pipeline.Runtime, cfg Config) (stop func() error) {
	t.Helper()
	s, err := New(rt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(testDeadline):
			return errors.New("the sink did not stop")
		}
	}
}

// runToEnd starts a sink and stops it at once: what is on the topics then must be in the files.
func runToEnd(t testing.TB, rt *pipeline.Runtime, cfg Config) {
	t.Helper()
	if err := start(t, rt, cfg)(); err != nil {
		t.Fatal(err)
	}
}

func points(t testing.TB, dir string) []string {
	t.Helper()
	var out []string
	for _, r := range read(t, dir, pipeline.TopicMetrics) {
		out = append(out, r["name"].(string))
	}
	return out
}

func want(name string, n int) []string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("%s%d", name, i))
	}
	return out
}

// A stop writes everything that was committed before it, from all partitions of all topics; a restart goes on there.
func TestInvariant_EveryRecordOnce(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	cl := client(t, rt)
	emit := func(topic string, partition int32, v schemas.Record) {
		rec, err := rt.Encode(t.Context(), pipeline.Emission{Topic: topic, Partition: partition, Value: v})
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	for round := range int64(3) {
		produce(t, rt, cl, fmt.Sprintf("r%d-", round), 5)
		for p := range int64(3) {
			emit(pipeline.TopicTraces, int32(p), &schemas.Trace{Env: "catch", GroupID: p, GroupSize: 9, RolloutIndex: int(round)})
		}
		emit(pipeline.TopicTasks("catch"), 11, &schemas.Task{Env: "catch", GroupSize: 1, GroupID: round})
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: rt.TopicName(pipeline.TopicDLQ), Key: []byte("traces/0/1"), Value: []byte("x")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
		runToEnd(t, rt, config(dir))
	}
	if got, want := points(t, dir), slices.Concat(want("r0-", 5), want("r1-", 5), want("r2-", 5)); !slices.Equal(got, want) {
		t.Errorf("metrics %v", got)
	}
	seen := map[string]bool{}
	for _, r := range read(t, dir, pipeline.TopicTraces) {
		seen[fmt.Sprint(r["group_id"], r["kafka_partition"], r["rollout_index"])] = true
	}
	if len(seen) != 9 || len(read(t, dir, pipeline.TopicTraces)) != 9 {
		t.Errorf("traces %v", seen)
	}
	if got := offsets(t, dir, pipeline.TopicTasks("catch")); !slices.Equal(got, []int64{0, 1, 2}) {
		t.Errorf("tasks %v", got)
	}
	if got := offsets(t, dir, pipeline.TopicDLQ); !slices.Equal(got, []int64{0, 1, 2}) {
		t.Errorf("dlq %v", got)
	}
}

// Aborted records are in no file; the markers of transactions are gaps that the chain carries.
func TestSink_Transactions(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	cl := client(t, rt, kgo.TransactionalID("test.tx"))
	transaction(t, rt, cl, "a", 3, kgo.TryCommit)
	transaction(t, rt, cl, "lost", 2, kgo.TryAbort)
	runToEnd(t, rt, config(dir))
	transaction(t, rt, cl, "lost", 2, kgo.TryAbort)
	transaction(t, rt, cl, "b", 2, kgo.TryCommit)
	runToEnd(t, rt, config(dir))
	runToEnd(t, rt, config(dir))
	if got := points(t, dir); !slices.Equal(got, append(want("a", 3), want("b", 2)...)) {
		t.Errorf("points %v", got)
	}
	// 3 records and a marker, 2 and a marker | 2 and a marker, 2 and a marker
	c, err := OpenChain(dir, pipeline.TopicMetrics, id(t, rt, pipeline.TopicMetrics), 0)
	if err != nil {
		t.Fatal(err)
	}
	if c.Next() != 13 {
		t.Errorf("the chain ends at %d, want 13", c.Next())
	}
}

// A transaction that is open holds the sink at its start, and a stop does not wait for it.
func TestSink_StopDoesNotWaitForAnOpenTransaction(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	produce(t, rt, client(t, rt), "a", 2)
	cl := client(t, rt, kgo.TransactionalID("test.tx"))
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	produce(t, rt, cl, "b", 2)
	runToEnd(t, rt, config(dir))
	if got := points(t, dir); !slices.Equal(got, want("a", 2)) {
		t.Errorf("points %v", got)
	}
	if err := cl.EndTransaction(t.Context(), kgo.TryCommit); err != nil {
		t.Fatal(err)
	}
	runToEnd(t, rt, config(dir))
	if got := points(t, dir); !slices.Equal(got, append(want("a", 2), want("b", 2)...)) {
		t.Errorf("points %v", got)
	}
}

func id(t testing.TB, rt *pipeline.Runtime, topic string) [16]byte {
	t.Helper()
	topics, err := kadm.NewClient(client(t, rt)).ListTopics(t.Context(), rt.TopicName(topic))
	if err != nil {
		t.Fatal(err)
	}
	return topics[rt.TopicName(topic)].ID
}

// Two sinks of one run, which a mistake may start, still make one chain.
func TestInvariant_TwoSinks(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	cl := client(t, rt)
	small, large := config(dir), config(dir)
	small.MaxRows, large.MaxRows = 3, 7
	stopA, stopB := start(t, rt, small), start(t, rt, large)
	produce(t, rt, cl, "p", 120)
	if err := errors.Join(stopA(), stopB()); err != nil {
		t.Fatal(err)
	}
	if got := points(t, dir); !slices.Equal(got, want("p", 120)) {
		t.Errorf("%d points: %v", len(got), got)
	}
}

// Files are written while the sink runs: by size, and by age.
func TestSink_RollsWhileItRuns(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"rows":     func(c *Config) { c.MaxRows = 1 },
		"bytes":    func(c *Config) { c.MaxBytes = 1 },
		"age":      func(c *Config) { c.MaxAge = pipeline.Duration(time.Millisecond) },
		"buffered": func(c *Config) { c.MaxBytes, c.MaxBufferedBytes = 10, 10 },
	} {
		t.Run(name, func(t *testing.T) {
			rt, dir := newRun(t), t.TempDir()
			cfg := config(dir)
			change(&cfg)
			stop := start(t, rt, cfg)
			produce(t, rt, client(t, rt), "p", 3)
			eventually(t, func() bool { return len(points(t, dir)) == 3 })
			if err := stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// A stop keeps to the limits while it reads what there is still: of memory, and of a file.
func TestSink_DrainsWithinItsLimits(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"rows":     func(c *Config) { c.MaxRows = 1000 },
		"bytes":    func(c *Config) { c.MaxBytes = 1000 },
		"buffered": func(c *Config) { c.MaxBytes, c.MaxBufferedBytes = 1000, 1000 },
	} {
		t.Run(name, func(t *testing.T) {
			rt, dir := newRun(t), t.TempDir()
			const n = 3 * pollRecords
			cl := client(t, rt)
			for i := range n {
				rec, err := rt.Encode(t.Context(), pipeline.Emission{Topic: pipeline.TopicMetrics, Value: &schemas.MetricPoint{Name: fmt.Sprint(i)}})
				if err != nil {
					t.Fatal(err)
				}
				cl.Produce(t.Context(), rec, func(_ *kgo.Record, err error) {
					if err != nil {
						t.Error(err)
					}
				})
			}
			if err := cl.Flush(t.Context()); err != nil {
				t.Fatal(err)
			}
			cfg := config(dir)
			change(&cfg)
			runToEnd(t, rt, cfg)
			files, err := OpenFiles(dir, pipeline.TopicMetrics)
			if err != nil {
				t.Fatal(err)
			}
			if end := files.Spans[0].End; end != n {
				t.Errorf("the files go to %d, want %d", end, n)
			}
			all, err := filepath.Glob(filepath.Join(dir, pipeline.TopicMetrics, pipeline.TopicMetrics+"-*.parquet"))
			if err != nil || len(all) < n/pollRecords {
				t.Errorf("%d files, %v: more was in memory at once than a poll gives", len(all), err)
			}
		})
	}
}

func eventually(t testing.TB, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(testDeadline); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("did not come")
		}
	}
}

func TestDue_LargestBufferGoesFirst(t *testing.T) {
	rt := newRun(t)
	cfg := config(t.TempDir())
	cfg.MaxBytes, cfg.MaxBufferedBytes = 1000, 1000
	s, err := New(rt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r := &reader{Sink: s, chains: map[string]map[int32]*Chain{"t": {}}}
	for p, size := range []int64{300, 900, 200, 0} {
		r.chains["t"][int32(p)] = &Chain{bytes: size, rows: make([]Row, min(size, 1)), first: time.Now()}
	}
	if due := r.due(time.Now()); len(due) != 1 || due[0].bytes != 900 {
		t.Errorf("%d chains are due", len(due))
	}
}

// A topic that appears while the sink runs is read from its start.
func TestSink_NewTopics(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	stop := start(t, rt, config(dir))
	adm := kadm.NewClient(client(t, rt))
	for _, topic := range []string{rt.TopicName(pipeline.TopicTasks("later")), rt.TopicName("unknown"), "other." + pipeline.TopicMetrics} {
		if _, err := adm.CreateTopic(t.Context(), 2, 1, nil, topic); err != nil {
			t.Fatal(err)
		}
	}
	rec, err := rt.Encode(t.Context(), pipeline.Emission{Topic: pipeline.TopicTasks("later"), Partition: 1, Value: &schemas.Task{Env: "later", GroupSize: 1}})
	if err != nil {
		t.Fatal(err)
	}
	if err := client(t, rt).ProduceSync(t.Context(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if got := read(t, dir, pipeline.TopicTasks("later")); len(got) != 1 || got[0]["kafka_topic"] != "tasks.later" || got[0]["kafka_partition"] != int32(1) {
		t.Errorf("tasks %v", got)
	}
}

func TestSink_RecreatedTopic(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	cl := client(t, rt)
	produce(t, rt, cl, "p", 2)
	runToEnd(t, rt, config(dir))
	adm := kadm.NewClient(cl)
	if _, err := adm.DeleteTopic(t.Context(), rt.TopicName(pipeline.TopicMetrics)); err != nil {
		t.Fatal(err)
	}
	if _, err := adm.CreateTopic(t.Context(), 1, 1, nil, rt.TopicName(pipeline.TopicMetrics)); err != nil {
		t.Fatal(err)
	}
	if err := start(t, rt, config(dir))(); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "metrics was made again") {
		t.Errorf("got %v", err)
	}
}

func TestSink_RecreatedTopicWhileItRuns(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	cl := client(t, rt)
	cfg := config(dir)
	cfg.MaxRows = 1
	stop := start(t, rt, cfg)
	produce(t, rt, cl, "p", 1)
	eventually(t, func() bool { return len(points(t, dir)) == 1 })
	adm := kadm.NewClient(cl)
	if _, err := adm.DeleteTopic(t.Context(), rt.TopicName(pipeline.TopicMetrics)); err != nil {
		t.Fatal(err)
	}
	if _, err := adm.CreateTopic(t.Context(), 1, 1, nil, rt.TopicName(pipeline.TopicMetrics)); err != nil {
		t.Fatal(err)
	}
	if err := stop(); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "made again while the sink read it") {
		t.Errorf("got %v", err)
	}
}

// Records that were deleted before the sink had them are an error that names them, never a silent jump.
func TestSink_DeletedRecords(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	cl := client(t, rt)
	produce(t, rt, cl, "p", 2)
	runToEnd(t, rt, config(dir))
	produce(t, rt, cl, "q", 5)
	deleted := kadm.Offsets{}
	deleted.Add(kadm.Offset{Topic: rt.TopicName(pipeline.TopicMetrics), At: 4})
	if resp, err := kadm.NewClient(cl).DeleteRecords(t.Context(), deleted); err != nil || resp.Error() != nil {
		t.Fatal(err, resp.Error())
	}
	s, err := New(rt, config(dir))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testDeadline)
	defer cancel()
	if err := s.Run(ctx); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "test.metrics/0: the records from offset 2 to 3 were deleted") {
		t.Errorf("got %v", err)
	}
	if got := points(t, dir); !slices.Equal(got, want("p", 2)) {
		t.Errorf("points %v", got)
	}
}

func TestConfig_Validate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults are refused: %v", err)
	}
	for key, change := range map[string]func(*Config){
		"sink.max_rows = 0":           func(c *Config) { c.MaxRows = 0 },
		"sink.max_bytes = 0":          func(c *Config) { c.MaxBytes = 0 },
		"sink.max_age = 0s":           func(c *Config) { c.MaxAge = 0 },
		"sink.max_buffered_bytes = 1": func(c *Config) { c.MaxBufferedBytes = 1 },
		"sink.drain = -1ns":           func(c *Config) { c.Drain = -1 },
	} {
		cfg := DefaultConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.HasPrefix(err.Error(), key) {
			t.Errorf("%s: got %v", key, err)
		}
	}
}
