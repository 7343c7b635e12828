package stages

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/trainer"
	"github.com/prl-project/prl/stages/ui"
)

// An old run has a history of many decided groups and nothing in flight.
type oldRun struct {
	testing.TB
	cfg   *Config
	addrs []string
	cl    *kgo.Client
	app   *App // of the last stage that was started

	groups, versions int64
	next             map[string]int64 // offset behind the last record of each topic's partition 0
	buffer           []*kgo.Record
	zero             *schemas.PolicyVersion
	read             atomic.Int64  // records the stage has fetched
	tasks            atomic.Int64  // of these, tasks
	age              time.Duration // of the records that are written
}

// newOldRun lets the cores of emitter, scorer and packer decide n groups of two rollouts, 32 groups a step, and writes all
// that they and the others would have: every topic, the state records, the groups' commits.
func newOldRun(t testing.TB, n int64) *oldRun {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	o := &oldRun{TB: t, addrs: cluster.ListenAddrs(), next: map[string]int64{}}
	o.cfg = DefaultConfig()
	sets := []string{"dir=" + t.TempDir(), "run.name=old", "run.max_steps=1000000", "run.max_async_level=1", "run.max_off_policy_steps=2", "run.batch_size=64",
		"run.trace_partitions=1", "run.task_partitions=1", "envs.catch.group_size=2", "emitter.permits=128", "inference.listen=localhost:0", "ui.listen=localhost:0", "trainer.learner=null", "sink.max_age=10ms"}
	if err := pipeline.LoadConfig("../configs/ordered.toml", nil, sets, o.cfg); err != nil {
		t.Fatal(err)
	}
	app := o.newApp("writer")
	if err := app.SetUp(t.Context()); err != nil {
		t.Fatal(err)
	}
	if o.cl, err = app.Runtime.Client(kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(o.cl.Close)
	o.zero = o.versionZero(app)
	o.age = time.Hour
	o.decide(n)
	o.flush()
	o.age = 0
	return o
}

func (o *oldRun) newApp(instance string) *App {
	o.Helper()
	app, err := NewApp(o.cfg, o.addrs, instance, slog.New(slog.DiscardHandler))
	if err != nil {
		o.Fatal(err)
	}
	app.Serve = []string{"catch"}
	app.Runtime.Options = []kgo.Opt{kgo.WithHooks(o)}
	o.Cleanup(func() { _ = app.Close() }) // nothing is left in it
	return app
}

// OnFetchRecordUnbuffered counts what the stages read.
func (o *oldRun) OnFetchRecordUnbuffered(r *kgo.Record, polled bool) {
	if polled {
		o.read.Add(1)
		if strings.HasSuffix(r.Topic, pipeline.TopicTasks("catch")) {
			o.tasks.Add(1)
		}
	}
}

func (o *oldRun) versionZero(app *App) *schemas.PolicyVersion {
	o.Helper()
	null, err := trainer.NewNull(o.cfg.Run, o.cfg.Model)
	if err != nil {
		o.Fatal(err)
	}
	put := func(prefix string, data []byte) schemas.BlobRef {
		ref, err := app.Runtime.Blobs.Put(o.Context(), prefix, data)
		if err != nil {
			o.Fatal(err)
		}
		return ref
	}
	config, tokenizer := null.Files()
	ref := put("checkpoints", nil)
	return &schemas.PolicyVersion{Kind: "full", NextOffsets: []int64{0}, Weights: put("weights", null.Weights()), Config: put("models", config), Tokenizer: put("models", tokenizer), Checkpoint: &ref}
}

// emit writes a record without a transaction and gives its offset.
func (o *oldRun) emit(topic string, v schemas.Record) int64 {
	o.Helper()
	r, err := o.newRecord(topic, v)
	if err != nil {
		o.Fatal(err)
	}
	r.Timestamp = time.Now().Add(-o.age)
	if o.buffer = append(o.buffer, r); len(o.buffer) >= 5000 {
		o.flush()
	}
	if topic == pipeline.TopicState {
		topic = fmt.Sprint(topic, r.Partition)
	}
	o.next[topic]++
	return o.next[topic] - 1
}

func (o *oldRun) newRecord(topic string, v schemas.Record) (*kgo.Record, error) {
	rt := pipeline.Runtime{Run: o.cfg.Run}
	return rt.Encode(o.Context(), pipeline.Emission{Topic: topic, Partition: pipeline.AutoPartition, Value: v})
}

func (o *oldRun) flush() {
	o.Helper()
	if err := o.cl.ProduceSync(o.Context(), o.buffer...).FirstErr(); err != nil {
		o.Fatal(err)
	}
	o.buffer = nil
}

func (o *oldRun) publish(version int64) *schemas.PolicyVersion {
	v := *o.zero
	v.Version, v.Step, v.NextOffsets = version, version, []int64{o.next[pipeline.TopicBatches]}
	v.Metrics = map[string]float64{"loss": 1, "entropy": 2, "kl": 3, "reward": 4, "tokens": 5, "grad_norm": 6}
	if version%o.cfg.Trainer.CheckpointInterval != 0 {
		v.Checkpoint = nil
	}
	o.emit(pipeline.TopicPolicies, &v)
	o.versions = version + 1
	return &v
}

// decide runs the cores until n groups are decided.
func (o *oldRun) decide(n int64) {
	o.Helper()
	core := func(factory func(int32, []byte) (pipeline.Core, error), err error) pipeline.Core {
		if err != nil {
			o.Fatal(err)
		}
		c, err := factory(0, nil)
		if err != nil {
			o.Fatal(err)
		}
		return c
	}
	emit := core(emitter.New(o.cfg.Run, o.cfg.Emitter, o.cfg.Envs))
	score := core(scorer.New(o.cfg.Run, o.cfg.Scorer, o.cfg.Emitter.MaxAttempts), nil)
	pack := core(packer.New(o.cfg.Run, o.cfg.Packer), nil)
	unfinished := 0
	table := func(topic string, v schemas.Record) {
		if err := emit.(pipeline.TableReader).Table(pipeline.Record{Ref: pipeline.Ref{Topic: topic}, Value: v}); err != nil {
			o.Fatal(err)
		}
	}
	feed := func(c pipeline.Core, topic string, v schemas.Record) []pipeline.Emission {
		var out pipeline.Out
		at := o.emit(topic, v)
		if err := c.Process(pipeline.Record{Ref: pipeline.Ref{Topic: topic, Offset: at}, Value: v}, &out); err != nil {
			o.Fatal(err)
		}
		unfinished += 1 - len(out.Finished)
		return out.Emitted
	}
	info := &schemas.EnvInfo{Env: "catch", Version: "1", TrainTasks: 100, EvalTasks: 100}
	o.emit(pipeline.TopicEnvs, info)
	table(pipeline.TopicEnvs, info)
	table(pipeline.TopicPolicies, o.publish(0))
	now := time.UnixMilli(1_700_000_000_000)
	for o.groups < n {
		var out pipeline.Out
		now = now.Add(100 * time.Millisecond)
		table(pipeline.TopicEnvs, info) // its server lives
		if err := emit.(pipeline.Ticker).Tick(now, &out); err != nil {
			o.Fatal(err)
		}
		for _, task := range out.Emitted {
			o.emit(task.Topic, task.Value)
			for _, group := range feed(score, pipeline.TopicTraces, o.trace(task.Value.(*schemas.Task))) {
				step := int64(0)
				for _, packed := range feed(pack, group.Topic, group.Value) {
					switch v := packed.Value.(type) {
					case *schemas.GroupOutcome:
						o.groups++
						feed(emit, packed.Topic, v)
					case *schemas.MicroBatch:
						o.emit(packed.Topic, v)
						step = v.Step
					default:
						o.emit(packed.Topic, v)
					}
				}
				if step > 0 {
					table(pipeline.TopicPolicies, o.publish(step))
				}
			}
		}
	}
	if unfinished != 0 {
		o.Fatalf("%d records are unfinished", unfinished)
	}
	o.keep("emitter", emit, pipeline.TopicOutcomes, pipeline.TopicRequests)
	o.keep("scorer", score, pipeline.TopicTraces)
	o.keep("packer", pack, pipeline.TopicSamples)
	o.keep("envserver", nil, pipeline.TopicTasks("catch"))
}

// trace is the rollout of a task: the first of a group wins.
func (o *oldRun) trace(t *schemas.Task) *schemas.Trace {
	reward := float64(1 - t.RolloutIndex)
	node := func(parent int, mask byte) schemas.Node {
		n := schemas.Node{Parent: parent, Role: "user", TokenIDs: schemas.PackInt32s([]int32{1, 2}), Mask: []byte{mask, mask}, Logprobs: make([]byte, 8)}
		if mask == 1 {
			n.Role, n.Temperature, n.Versions = "assistant", 1, []schemas.VersionRun{{Version: o.versions - 1}}
			n.Logprobs = schemas.PackFloat32s([]float32{-1, -1})
		}
		return n
	}
	return &schemas.Trace{Env: t.Env, EnvVersion: "1", GroupID: t.GroupID, GroupSize: t.GroupSize, RolloutIndex: t.RolloutIndex, Split: t.Split, TaskIndex: t.TaskIndex,
		Reward: &reward, PolicyStart: new(o.versions - 1), PolicyEnd: new(o.versions - 1), Nodes: []schemas.Node{node(-1, 0), node(0, 1)}}
}

// keep writes the state record of a stage that has finished all its inputs, and the group's commits that point at it.
func (o *oldRun) keep(stage string, core pipeline.Core, topics ...string) {
	o.Helper()
	var state []byte
	if core != nil {
		var err error
		if state, err = core.State(); err != nil {
			o.Fatal(err)
		}
	}
	group, commits := stage, kadm.Offsets{}
	rt := pipeline.Runtime{Run: o.cfg.Run}
	for i, topic := range topics {
		rec := &schemas.StageState{Stage: stage, Topic: topic, Instance: "one", LowOffset: o.next[topic], NextOffset: o.next[topic]}
		if i == 0 {
			rec.Core = state
		}
		if stage == "envserver" {
			group, rec.Concurrency = "envserver.catch", 8
		}
		commits.Add(kadm.Offset{Topic: rt.TopicName(topic), At: o.next[topic], LeaderEpoch: -1, Metadata: fmt.Sprint("prl1:", o.emit(pipeline.TopicState, rec))})
	}
	if err := kadm.NewClient(o.cl).CommitAllOffsets(o.Context(), rt.TopicName(group), commits); err != nil {
		o.Fatal(err)
	}
}

// A restart is what a stage needed until it worked.
type restart struct {
	took time.Duration
	read int64 // records
	heap int64 // bytes more, the broker's buffers in this process included
}

// restart starts a stage and waits until it works: a stage with a core until it has committed a record that has come
// since, the others until they are ready or have written one.
func (o *oldRun) restart(stage string) restart {
	o.Helper()
	before := heap()
	o.read.Store(0)
	o.tasks.Store(0)
	start := time.Now()
	s, err := Find(stage)
	if err != nil {
		o.Fatal(err)
	}
	o.app = o.newApp("one")
	r, err := s.New(o.app, s)
	if err != nil {
		o.Fatal(err)
	}
	ctx, cancel := context.WithCancel(o.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	o.await(stage, done)
	took, read := time.Since(start), o.read.Load()
	grown := heap() - before
	cancel()
	if err := <-done; err != nil {
		o.Fatalf("%s: %v", stage, err)
	}
	return restart{took, read, grown}
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// await gives a started stage work and waits until it is done.
func (o *oldRun) await(stage string, done chan error) {
	o.Helper()
	there := func() bool { return o.app.Runtime.Health.Ready(stage) }
	committed := func(topic string, v schemas.Record) {
		o.emit(topic, v)
		o.flush()
		state := kadm.NewClient(o.cl)
		want := o.next[topic]
		group := o.app.Runtime.TopicName(stage)
		there = func() bool {
			offsets, err := state.FetchOffsets(o.Context(), group)
			if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // it has not joined yet
				o.Fatal(err)
			}
			at, ok := offsets.Lookup(o.app.Runtime.TopicName(topic), 0)
			return ok && at.At == want
		}
	}
	decided := &schemas.Task{Env: "catch", GroupID: 0, GroupSize: 2, Split: schemas.SplitTrain, Temperature: 1, TopP: 1, MaxTokens: 1, MaxRolloutTokens: 8, TimeoutMs: 1000}
	switch stage {
	case "envserver":
		there = func() bool { // and has all tasks that the emitter's restart has put in flight
			return o.app.Runtime.Health.Ready("envserver.catch") && o.tasks.Load() >= int64(o.cfg.Emitter.Permits)
		}
	case "emitter":
		committed(pipeline.TopicOutcomes, &schemas.GroupOutcome{Env: "catch", Fate: schemas.FatePacked, Step: new(int64(1))})
	case "scorer":
		committed(pipeline.TopicTraces, o.trace(decided))
	case "packer":
		committed(pipeline.TopicSamples, &schemas.SampleGroup{Env: "catch", GroupID: 0, Emitted: 2, Reason: schemas.FateFiltered})
	case "eval":
		committed(pipeline.TopicEvalTraces, &schemas.Trace{Env: "catch", Eval: "unknown", GroupSize: 1})
	case "sink":
		files := func() int {
			list, err := filepath.Glob(filepath.Join(o.cfg.Sink.Dir, "metrics", "metrics-*.parquet"))
			if err != nil {
				o.Fatal(err)
			}
			return len(list)
		}
		had := files()
		o.emit(pipeline.TopicMetrics, &schemas.MetricPoint{Name: "one more"})
		o.flush()
		there = func() bool { return files() > had }
	}
	deadline := time.After(5 * time.Minute)
	for !there() {
		select {
		case err := <-done:
			o.Fatalf("%s ended: %v", stage, err)
		case <-deadline:
			o.Fatalf("%s did not start", stage)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// sinkAll writes the history to Parquet.
func (o *oldRun) sinkAll() {
	o.Helper()
	rt := o.newApp("history").Runtime
	cfg := o.cfg.Sink
	cfg.Drain = pipeline.Duration(time.Hour)
	s, err := sink.New(rt, cfg)
	if err != nil {
		o.Fatal(err)
	}
	ctx, cancel := context.WithCancel(o.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		o.Fatal(err)
	}
}

// TestGrowth restarts every stage of a run that is eight times as old as another: it reads no more than on the young one,
// but for policy versions, of which it may read every one.
func TestGrowth(t *testing.T) {
	read := map[string][2]int64{}
	var versions [2]int64
	for i, n := range []int64{640, 8 * 640} {
		o := newOldRun(t, n)
		versions[i] = o.versions
		for _, s := range Flow {
			if s.Name == "cleanup" || s.Aside && s.Name != ui.Name {
				continue // it looks at the whole run
			}
			if s.Name == "sink" {
				o.sinkAll()
			}
			r := o.restart(s.Name)
			t.Logf("%s after %d groups: %v, %d records", s.Name, o.groups, r.took, r.read)
			counts := read[s.Name]
			counts[i] = r.read
			read[s.Name] = counts
		}
	}
	const inFlight = 100
	for stage, counts := range read {
		if more := counts[1] - counts[0]; more > versions[1]-versions[0]+inFlight {
			t.Errorf("%s reads %d records at a start, and %d when the run is eight times as old", stage, counts[0], counts[1])
		}
	}
}

// BenchmarkRestart measures the restart of every stage after ten thousand groups, and without -short after a hundred
// thousand and a million.
//
//	go test ./stages -run '^$' -bench Restart -benchtime 1x -timeout 1h
func BenchmarkRestart(b *testing.B) {
	for _, n := range []int64{10_048, 100_032, 1_000_000} {
		if n > 20_000 && testing.Short() {
			continue
		}
		b.Run(fmt.Sprintf("groups=%d", n), func(b *testing.B) {
			o := newOldRun(b, n)
			for _, s := range Flow {
				if s.Name != "cleanup" && (!s.Aside || s.Name == ui.Name) { // these look at the whole run
					b.Run(s.Name, func(b *testing.B) { o.measure(b, s.Name) })
				}
			}
		})
	}
}

func (o *oldRun) measure(b *testing.B, stage string) {
	defer func(run testing.TB) { o.TB = run }(o.TB)
	o.TB = b
	if stage == "sink" {
		o.sinkAll()
	}
	var r restart
	for b.Loop() {
		r = o.restart(stage)
	}
	b.ReportMetric(float64(r.took.Milliseconds()), "ms")
	b.ReportMetric(float64(r.read), "records")
	b.ReportMetric(float64(r.heap)/(1<<20), "MiB")
}
