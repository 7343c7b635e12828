package envserver

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
)

// deadline bounds every wait of these tests.
const deadline = 60 * time.Second

// testRun is a run on a broker of its own, with policy version 3 published; dir holds its blobs.
func testRun(t *testing.T) (rt *pipeline.Runtime, cluster *kfake.Cluster, dir string) {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	dir = t.TempDir()
	if rt, err = runtimeAt(cluster.ListenAddrs(), dir, slog.New(slog.NewTextHandler(t.Output(), nil))); err != nil {
		t.Fatal(err)
	}
	if err := rt.SetUp(t.Context(), []string{"game", "contest"}); err != nil {
		t.Fatal(err)
	}
	publishPolicy(t, rt)
	return rt, cluster, dir
}

// publishPolicy publishes policy version 3.
func publishPolicy(t testing.TB, rt *pipeline.Runtime) {
	t.Helper()
	tok, err := tokenizer(t).MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	ref, err := rt.Blobs.Put(t.Context(), "tokenizers", tok)
	if err != nil {
		t.Fatal(err)
	}
	produce(t, rt, pipeline.TopicPolicies, &schemas.PolicyVersion{Version: 3, Kind: "full", Weights: ref, Config: ref, Tokenizer: ref})
}

func runtimeAt(brokers []string, dir string, log *slog.Logger) (*pipeline.Runtime, error) {
	blobs, err := pipeline.OpenBlobs(dir)
	if err != nil {
		return nil, err
	}
	run := pipeline.DefaultRunConfig()
	run.Name, run.TaskPartitions = "test", 3
	return &pipeline.Runtime{Run: run, Brokers: brokers, Instance: "one", Blobs: blobs, Log: log,
		Metrics: pipeline.NewMetrics(prometheus.NewRegistry())}, nil
}

// produce writes records; tasks go to the partitions in turn.
func produce(t testing.TB, rt *pipeline.Runtime, topic string, values ...schemas.Record) {
	t.Helper()
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for i, v := range values {
		r, err := rt.Encode(t.Context(), pipeline.Emission{Topic: topic, Partition: int32(i) % rt.Partitions(topic), Value: v})
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

// read reads a topic until enough says so.
func read(t testing.TB, rt *pipeline.Runtime, topic string, enough func([]pipeline.Record) bool) []pipeline.Record {
	t.Helper()
	f, err := rt.Follow(topic)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var recs []pipeline.Record
	for !enough(recs) {
		got, err := f.Poll(ctx)
		if err != nil || ctx.Err() != nil {
			t.Fatalf("%s after %d records: %v", topic, len(recs), errors.Join(err, ctx.Err()))
		}
		recs = append(recs, got...)
	}
	return recs
}

// states is the last state record of each partition of a stopped server.
func states(t testing.TB, rt *pipeline.Runtime) map[string]*schemas.StageState {
	t.Helper()
	f, err := rt.Follow(pipeline.TopicState)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	recs, err := f.Load(ctx)
	if err != nil || len(recs) == 0 {
		t.Fatalf("%d state records: %v", len(recs), err)
	}
	last := map[string]*schemas.StageState{}
	for _, r := range recs {
		last[r.Key] = r.Value.(*schemas.StageState)
	}
	return last
}

func count(n int) func([]pipeline.Record) bool {
	return func(recs []pipeline.Record) bool { return len(recs) >= n }
}

// covers is enough when every group from 0 to n-1 has a trace.
func covers(n int64) func([]pipeline.Record) bool {
	return func(recs []pipeline.Record) bool { return int64(len(groupsOf(recs))) == n }
}

func groupsOf(recs []pipeline.Record) map[int64]int {
	groups := map[int64]int{}
	for _, r := range recs {
		groups[r.Value.(*schemas.Trace).GroupID]++
	}
	return groups
}

func tasks(n int, change func(int, *schemas.Task)) []schemas.Record {
	var list []schemas.Record
	for i := range n {
		t := testTask()
		t.GroupID, t.GroupSize, t.RolloutIndex = int64(i), 1, 0
		if change != nil {
			change(i, t)
		}
		list = append(list, t)
	}
	return list
}

// serve runs a server until the returned function is called, which calls its arguments while the server stops.
func serve(t testing.TB, rt *pipeline.Runtime, m Directory, change func(*Config)) (stop func(meanwhile ...func())) {
	t.Helper()
	return serveAll(t, rt, map[string]env.Environment{"game": &game{}, "contest": &contest{game{info: env.Info{Name: "contest"}}}}, m, nil, change)
}

// serveEnv is serve with an environment of the test's own.
func serveEnv(t testing.TB, rt *pipeline.Runtime, e env.Environment, m Directory) (stop func(meanwhile ...func())) {
	t.Helper()
	return serveAll(t, rt, map[string]env.Environment{"game": e}, m, nil, nil)
}

func serveAll(t testing.TB, rt *pipeline.Runtime, envs map[string]env.Environment, m Directory, teachers map[string]Teacher, change func(*Config)) (stop func(meanwhile ...func())) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Concurrency = 16
	if change != nil {
		change(&cfg)
	}
	s, err := New(rt, cfg, envs, m, teachers)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	return func(meanwhile ...func()) {
		t.Helper()
		cancel()
		for _, f := range meanwhile {
			f()
		}
		select {
		case err := <-done:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(deadline):
			t.Fatal("the server does not stop")
		}
	}
}

func TestServer(t *testing.T) {
	rt, _, _ := testRun(t)
	stop := serve(t, rt, says(tokenizer(t), "hi"), nil)
	bad := testTask()
	bad.Env = "other"
	produce(t, rt, pipeline.TopicTasks("game"), bad)
	produce(t, rt, pipeline.TopicTasks("game"), tasks(60, nil)...)
	produce(t, rt, pipeline.TopicTasks("game"), tasks(5, func(_ int, t *schemas.Task) { t.Eval, t.Split, t.Temperature = "held-out", schemas.SplitEval, 0 })...)
	produce(t, rt, pipeline.TopicTasks("contest"), tasks(4, func(i int, t *schemas.Task) {
		t.Env, t.GroupID, t.GroupSize, t.RolloutIndex = "contest", int64(60+i), 3, -1
	})...)
	for topic, want := range map[string]int{pipeline.TopicTraces: 60 + 4*3, pipeline.TopicEvalTraces: 5} {
		groups := map[int64]int{}
		for _, r := range read(t, rt, topic, count(want)) {
			trace := r.Value.(*schemas.Trace)
			scored(t, trace)
			groups[trace.GroupID]++
		}
		for id, n := range groups {
			if n != 1 && id < 60 || id >= 60 && n != 3 {
				t.Errorf("group %d has %d traces on %s", id, n, topic)
			}
		}
	}
	infos := map[string]*schemas.EnvInfo{}
	for _, r := range read(t, rt, pipeline.TopicEnvs, count(2)) {
		infos[r.Key] = r.Value.(*schemas.EnvInfo)
	}
	if g, c := infos["game"], infos["contest"]; g == nil || c == nil || g.GroupScoring || !c.GroupScoring || g.TrainTasks != 100 || g.Instance != "one" {
		t.Fatalf("announced %+v", infos)
	}
	// Then nothing is unfinished.
	read(t, rt, pipeline.TopicState, func(recs []pipeline.Record) bool {
		open := map[string]int64{}
		for _, r := range recs {
			s := r.Value.(*schemas.StageState)
			open[r.Key] = s.NextOffset - s.LowOffset
		}
		sum := int64(0)
		for _, n := range open {
			sum += n
		}
		return len(recs) > 0 && sum == 0
	})
	stop()
}

// A stop cancels what does not end in time, and the next start plays it, without counting a crash.
func TestServerPlaysOnAfterAStop(t *testing.T) {
	rt, _, _ := testRun(t)
	tok := tokenizer(t)
	blocked := make(chan struct{}, 100)
	var hang atomic.Bool
	hang.Store(true)
	m := &model{answer: func(ctx context.Context, call int, r inference.Request) (inference.Completion, error) {
		if call%2 == 0 && hang.Load() {
			blocked <- struct{}{}
			<-ctx.Done()
			return inference.Completion{}, ctx.Err()
		}
		return spoken(tok, "hi", r), nil
	}}
	produce(t, rt, pipeline.TopicTasks("game"), tasks(30, nil)...)
	stop := serve(t, rt, m, func(c *Config) { c.Drain = 0 })
	for range 8 {
		<-blocked
	}
	stop()
	for key, state := range states(t, rt) {
		equal(t, key+" is handed over with", entries(t, state.Core), nil)
	}
	hang.Store(false)
	stop = serve(t, rt, m, nil)
	for _, r := range read(t, rt, pipeline.TopicTraces, covers(30)) {
		scored(t, r.Value.(*schemas.Trace))
	}
	stop()
}

// A stop waits for what runs, and finishes it.
func TestServerDrains(t *testing.T) {
	rt, _, _ := testRun(t)
	tok := tokenizer(t)
	asked, release := make(chan struct{}), make(chan struct{})
	m := &model{answer: func(_ context.Context, _ int, r inference.Request) (inference.Completion, error) {
		close(asked)
		<-release
		return spoken(tok, "hi", r), nil
	}}
	produce(t, rt, pipeline.TopicTasks("game"), tasks(1, nil)...)
	stop := serve(t, rt, m, func(c *Config) { c.Drain = pipeline.Duration(deadline) })
	<-asked
	stop(func() { close(release) })
	scored(t, read(t, rt, pipeline.TopicTraces, count(1))[0].Value.(*schemas.Trace))
	if state := states(t, rt)["envserver/tasks.game/0"]; state.LowOffset != 1 {
		t.Fatalf("the trace is written, and its task is not finished: low offset %d", state.LowOffset)
	}
}

// Transactions that fail lose nothing.
func TestServerSurvivesFailedTransactions(t *testing.T) {
	rt, cluster, _ := testRun(t)
	var failures atomic.Int32
	cluster.ControlKey(int16(kmsg.TxnOffsetCommit), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if n := failures.Add(1); n != 2 && n != 4 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.TxnOffsetCommitResponse)
		for _, topic := range req.(*kmsg.TxnOffsetCommitRequest).Topics {
			rt := kmsg.NewTxnOffsetCommitResponseTopic()
			rt.Topic = topic.Topic
			for _, p := range topic.Partitions {
				rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, kerr.InvalidCommitOffsetSize.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	produce(t, rt, pipeline.TopicTasks("game"), tasks(100, nil)...)
	stop := serve(t, rt, says(tokenizer(t), "hi"), nil)
	recs := read(t, rt, pipeline.TopicTraces, covers(100))
	stop()
	if failures.Load() < 4 {
		t.Fatalf("only %d commits: the faults did not fire", failures.Load())
	}
	for _, r := range recs {
		scored(t, r.Value.(*schemas.Trace))
	}
}

func TestInvariant_EveryTaskGetsATrace(t *testing.T) {
	rt, cluster, dir := testRun(t)
	const n = 60
	produce(t, rt, pipeline.TopicTasks("game"), tasks(n, nil)...)
	for i, at := range []string{"envserver.before-commit:1", "envserver.published:1", "envserver.before-commit:2", "envserver.published:20", "envserver.after-commit:2", ""} {
		c := startChild(t, childConfig{Brokers: cluster.ListenAddrs(), Dir: dir, Run: rt.Run.Name, Partitions: rt.Run.TaskPartitions, Instance: "one", Slots: 16}, "PRL_CRASH_AT="+at)
		if at == "" {
			recs := read(t, rt, pipeline.TopicTraces, covers(n))
			for _, r := range recs {
				scored(t, r.Value.(*schemas.Trace))
			}
			t.Logf("%d traces of %d tasks after %d kills", len(recs), n, i)
			c.signal(t, syscall.SIGKILL)
		}
		c.killed(t)
	}
}
