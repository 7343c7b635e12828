package flowbench

import (
	"bytes"
	"compress/flate"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/trainer"
)

// An old run has a history of many decided groups, and some that are in flight.
type oldRun struct {
	testing.TB
	cfg   *stages.Config
	addrs []string
	cl    *kgo.Client

	emitting, scoring, packing pipeline.Core
	now                        time.Time // of the emitter's core

	groups   int64                     // decided
	newest   *schemas.PolicyVersion    // of the versions
	next     map[string]int64          // offset behind the last record of each topic's partition 0
	open     map[string]map[int64]bool // offsets of each topic that its reader has not finished
	kept     map[string]string         // metadata of each topic's newest commit
	buffer   []*kgo.Record
	buffered int
	zero     *schemas.PolicyVersion
	age      time.Duration // of the records that are written
	sets     []string      // what differs from theConfig
	fetched  fetched       // by the stages in this process
}

// theConfig is what an old run is a run of, but for a few settings.
const theConfig = "../../configs/ordered.toml"

// oldConfig is the configuration of an old run.
func oldConfig(sets []string) (*stages.Config, error) {
	cfg := stages.DefaultConfig()
	return cfg, pipeline.LoadConfig(theConfig, nil, sets, cfg)
}

// fetched counts what stages read.
type fetched struct{ records, bytes, tasks atomic.Int64 }

// OnFetchRecordUnbuffered hears of every record that a stage gets.
func (f *fetched) OnFetchRecordUnbuffered(r *kgo.Record, polled bool) {
	if polled {
		f.records.Add(1)
		f.bytes.Add(int64(len(r.Value)))
		if strings.HasSuffix(r.Topic, pipeline.TopicTasks("catch")) {
			f.tasks.Add(1)
		}
	}
}

func (f *fetched) reset() {
	f.records.Store(0)
	f.bytes.Store(0)
	f.tasks.Store(0)
}

// A flight is what is in flight: groups of which the scorer waits for the second rollout, whose task the environment server
// has, groups that the packer holds until its step is full, and how long a rollout is.
type flight struct {
	scoring, packing int64
	nodes, tokens    int
}

// newOldRun lets the cores of emitter, scorer and packer decide n groups of two rollouts, 32 groups a step, then puts others
// in flight, and writes all that they and the others would have: every topic, the state records, the groups' commits.
func newOldRun(t testing.TB, brokers []string, n int64, f flight) *oldRun {
	t.Helper()
	o := &oldRun{TB: t, addrs: brokers, next: map[string]int64{}, open: map[string]map[int64]bool{}, kept: map[string]string{}, now: time.UnixMilli(1_700_000_000_000)}
	o.sets = []string{"dir=" + t.TempDir(), fmt.Sprintf("run.name=old-%08x", rand.Uint32()), "run.max_steps=1000000", "run.seq_len=4096", "run.max_async_level=1", "run.max_off_policy_steps=2",
		"run.batch_size=64", "run.trace_partitions=1", "run.task_partitions=1", "envs.catch.group_size=2", "emitter.permits=128", "inference.listen=localhost:0", "ui.listen=localhost:0",
		"trainer.learner=null", "sink.max_age=10ms"}
	var err error
	if o.cfg, err = oldConfig(o.sets); err != nil {
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
	o.age = 0
	o.fly(f)
	o.flush()
	return o
}

func (o *oldRun) newApp(instance string) *stages.App {
	o.Helper()
	app, err := stages.NewApp(o.cfg, o.addrs, instance, slog.New(slog.DiscardHandler))
	if err != nil {
		o.Fatal(err)
	}
	app.Serve = []string{"catch"}
	app.Runtime.Options = []kgo.Opt{kgo.WithHooks(&o.fetched)}
	o.Cleanup(func() { _ = app.Close() }) // nothing is left in it
	return app
}

func (o *oldRun) versionZero(app *stages.App) *schemas.PolicyVersion {
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
	o.buffer, o.buffered = append(o.buffer, r), o.buffered+len(r.Value)
	if len(o.buffer) >= 5000 || o.buffered > 16<<20 {
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
	o.buffer, o.buffered = o.buffer[:0], 0
}

func (o *oldRun) publish(version int64) *schemas.PolicyVersion {
	v := *o.zero
	v.Version, v.Step, v.NextOffsets = version, version, []int64{o.next[pipeline.TopicBatches]}
	v.Metrics = map[string]float64{"loss": 1, "entropy": 2, "kl": 3, "reward": 4, "tokens": 5, "grad_norm": 6}
	if version%o.cfg.Trainer.CheckpointInterval != 0 {
		v.Checkpoint = nil
	}
	o.emit(pipeline.TopicPolicies, &v)
	o.newest = &v
	return &v
}

// build makes the cores, from what those before have left.
func (o *oldRun) build() {
	o.Helper()
	core := func(c *pipeline.Core, factory func(int32, []byte) (pipeline.Core, error), err error) {
		var state []byte
		if err == nil && *c != nil {
			state, err = (*c).State()
		}
		if err == nil {
			*c, err = factory(0, state)
		}
		if err != nil {
			o.Fatal(err)
		}
	}
	emit, err := emitter.New(o.cfg.Run, o.cfg.Emitter, o.cfg.Envs)
	core(&o.emitting, emit, err)
	core(&o.scoring, scorer.New(o.cfg.Run, o.cfg.Scorer, o.cfg.Emitter.MaxAttempts), nil)
	core(&o.packing, packer.New(o.cfg.Run, o.cfg.Packer), nil)
}

// table tells the emitter.
func (o *oldRun) table(topic string, v schemas.Record) {
	o.Helper()
	if err := o.emitting.(pipeline.TableReader).Table(pipeline.Record{Ref: pipeline.Ref{Topic: topic}, Value: v}); err != nil {
		o.Fatal(err)
	}
}

var theEnv = &schemas.EnvInfo{Env: "catch", Version: "1", TrainTasks: 100, EvalTasks: 100}

// tick lets the emitter ask for what it has permits for, and writes the tasks.
func (o *oldRun) tick() (tasks []*schemas.Task) {
	o.Helper()
	var out pipeline.Out
	o.now = o.now.Add(100 * time.Millisecond)
	o.table(pipeline.TopicEnvs, theEnv) // its server lives
	if err := o.emitting.(pipeline.Ticker).Tick(o.now, &out); err != nil {
		o.Fatal(err)
	}
	for _, e := range out.Emitted {
		o.notFinished(e.Topic, o.emit(e.Topic, e.Value))
		tasks = append(tasks, e.Value.(*schemas.Task))
	}
	return tasks
}

func (o *oldRun) notFinished(topic string, at int64) {
	if o.open[topic] == nil {
		o.open[topic] = map[int64]bool{}
	}
	o.open[topic][at] = true
}

// feed writes a record and gives it to the core that reads it.
func (o *oldRun) feed(c pipeline.Core, topic string, v schemas.Record) []pipeline.Emission {
	o.Helper()
	var out pipeline.Out
	at := o.emit(topic, v)
	o.notFinished(topic, at)
	if err := c.Process(pipeline.Record{Ref: pipeline.Ref{Topic: topic, Offset: at}, Value: v}, &out); err != nil {
		o.Fatal(err)
	}
	for _, ref := range out.Finished {
		delete(o.open[ref.Topic], ref.Offset)
	}
	return out.Emitted
}

// finish writes the trace of a task and lets it go its way.
func (o *oldRun) finish(tasks string, at int64, trace *schemas.Trace) {
	o.Helper()
	delete(o.open[tasks], at)
	for _, group := range o.feed(o.scoring, pipeline.TopicTraces, trace) {
		step := int64(0)
		for _, packed := range o.feed(o.packing, group.Topic, group.Value) {
			switch v := packed.Value.(type) {
			case *schemas.GroupOutcome:
				o.groups++
				o.feed(o.emitting, packed.Topic, v)
			case *schemas.MicroBatch:
				o.emit(packed.Topic, v)
				step = v.Step
			default:
				o.emit(packed.Topic, v)
			}
		}
		if step > 0 {
			o.table(pipeline.TopicPolicies, o.publish(step))
		}
	}
}

// decide runs the cores until n groups are decided.
func (o *oldRun) decide(n int64) {
	o.Helper()
	o.build()
	o.emit(pipeline.TopicEnvs, theEnv)
	o.table(pipeline.TopicEnvs, theEnv)
	o.table(pipeline.TopicPolicies, o.publish(0))
	tasks := pipeline.TopicTasks(theEnv.Env)
	for o.groups < n {
		first := o.next[tasks]
		for i, task := range o.tick() {
			o.finish(tasks, first+int64(i), o.trace(task, 2, 2))
		}
	}
	for topic, open := range o.open {
		if len(open) > 0 {
			o.Fatalf("%d records of %s are unfinished", len(open), topic)
		}
	}
}

// fly puts groups in flight, and keeps what the stages have committed then. A step takes more than they are.
func (o *oldRun) fly(f flight) {
	o.Helper()
	rollouts := 2 * int(f.scoring+f.packing)
	o.cfg.Run.BatchSize, o.cfg.Emitter.Permits = max(o.cfg.Run.BatchSize, rollouts-2), max(o.cfg.Emitter.Permits, rollouts)
	o.sets = append(o.sets, fmt.Sprintf("run.batch_size=%d", o.cfg.Run.BatchSize), fmt.Sprintf("emitter.permits=%d", o.cfg.Emitter.Permits))
	o.build()
	o.table(pipeline.TopicEnvs, theEnv)
	o.table(pipeline.TopicPolicies, o.newest)
	tasks, packed := pipeline.TopicTasks(theEnv.Env), int64(0)
	for at := o.next[tasks]; rollouts > 0; {
		asked := o.tick()
		if len(asked) == 0 {
			o.Fatalf("%d rollouts are not asked for", rollouts)
		}
		for _, task := range asked {
			whole := packed < f.packing && task.GroupID%((f.scoring+f.packing)/f.packing) == 0
			if whole || task.RolloutIndex == 0 {
				o.finish(tasks, at, o.trace(task, f.nodes, f.tokens))
			}
			if whole && task.RolloutIndex == 1 {
				packed++
			}
			at++
			rollouts--
		}
	}
	o.keep("emitter", o.emitting, pipeline.TopicOutcomes, pipeline.TopicRequests)
	o.keep("scorer", o.scoring, pipeline.TopicTraces)
	o.keep("packer", o.packing, pipeline.TopicSamples)
	o.keep("envserver", nil, tasks)
}

// trace is the rollout of a task, of nodes of some tokens each: the first of a group wins.
func (o *oldRun) trace(t *schemas.Task, nodes, tokens int) *schemas.Trace {
	reward, version := float64(1-t.RolloutIndex), o.newest.Version
	trace := &schemas.Trace{Env: t.Env, EnvVersion: "1", GroupID: t.GroupID, GroupSize: t.GroupSize, RolloutIndex: t.RolloutIndex, Split: t.Split, TaskIndex: t.TaskIndex,
		Reward: &reward, PolicyStart: &version, PolicyEnd: &version}
	ids, logprobs := make([]int32, tokens), make([]float32, tokens)
	for i := range ids {
		ids[i], logprobs[i] = int32(1+i), -1
	}
	for k := range nodes {
		n := schemas.Node{Parent: k - 1, Role: "user", TokenIDs: schemas.PackInt32s(ids), Mask: make([]byte, tokens), Logprobs: make([]byte, 4*tokens)}
		if k%2 == 1 {
			n.Role, n.Temperature, n.Versions = "assistant", 1, []schemas.VersionRun{{Version: version}}
			n.Mask, n.Logprobs = bytes.Repeat([]byte{1}, tokens), schemas.PackFloat32s(logprobs)
		}
		trace.Nodes = append(trace.Nodes, n)
	}
	return trace
}

// keep writes the state records of a stage, and the group's commits that point at them.
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
		rec := &schemas.StageState{Stage: stage, Topic: topic, Instance: "one", NextOffset: o.next[topic]}
		rec.LowOffset, rec.Unfinished = o.unfinished(topic)
		if i == 0 {
			rec.Core = state
		}
		if stage == "envserver" {
			group, rec.Concurrency = "envserver.catch", 8
		}
		o.kept[topic] = fmt.Sprint("prl1:", o.emit(pipeline.TopicState, rec))
		commits.Add(kadm.Offset{Topic: rt.TopicName(topic), At: rec.LowOffset, LeaderEpoch: -1, Metadata: o.kept[topic]})
	}
	if err := kadm.NewClient(o.cl).CommitAllOffsets(o.Context(), rt.TopicName(group), commits); err != nil {
		o.Fatal(err)
	}
}

// unfinished is the low offset of a topic and the set above it, as a state record has them.
func (o *oldRun) unfinished(topic string) (low int64, deflated []byte) {
	o.Helper()
	low = o.next[topic]
	for at := range o.open[topic] {
		low = min(low, at)
	}
	if low == o.next[topic] {
		return low, nil
	}
	set := make([]byte, (o.next[topic]-low+7)/8)
	for at := range o.open[topic] {
		set[(at-low)/8] |= 1 << ((at - low) % 8)
	}
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.DefaultCompression)
	if err == nil {
		_, err = w.Write(set)
	}
	if err = errors.Join(err, w.Close()); err != nil {
		o.Fatal(err)
	}
	return low, b.Bytes()
}
