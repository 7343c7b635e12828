package cleanup

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

var testReaders = map[string][]string{
	pipeline.TopicTraces: {"scorer"}, pipeline.TopicEvalTraces: {"eval"}, pipeline.TopicSamples: {"packer"}, "tasks.": {"envserver"},
}

// A world is a run on a broker of its own, as its stages would have left it.
type world struct {
	*testing.T
	rt      *pipeline.Runtime
	cl      *kgo.Client
	parquet string
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	run := pipeline.DefaultRunConfig()
	run.Name, run.TracePartitions, run.TaskPartitions = "test", 1, 1
	w := &world{T: t, parquet: t.TempDir(), rt: pipelinetest.Runtime(t, cluster.ListenAddrs(), run)}
	if err := w.rt.SetUp(t.Context(), []string{"catch"}); err != nil {
		t.Fatal(err)
	}
	if w.cl, err = w.rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cl.Close)
	return w
}

func (w *world) emit(topic string, v schemas.Record) {
	w.Helper()
	rec, err := w.rt.Encode(w.Context(), pipeline.Emission{Topic: topic, Partition: 0, Value: v})
	if err != nil {
		w.Fatal(err)
	}
	if err := w.cl.ProduceSync(w.Context(), rec).FirstErr(); err != nil {
		w.Fatal(err)
	}
}

// blob stores what is named after its content.
func (w *world) blob(prefix, content string) schemas.BlobRef {
	w.Helper()
	ref, err := w.rt.Blobs.Put(w.Context(), prefix, []byte(content))
	if err != nil {
		w.Fatal(err)
	}
	return ref
}

// state says that a stage has done with the records of a topic below low.
func (w *world) state(stage, topic string, low int64) {
	w.Helper()
	w.emit(pipeline.TopicState, &schemas.StageState{Stage: stage, Topic: topic, Instance: "one", LowOffset: low, NextOffset: low})
}

// sink writes everything there is to Parquet.
func (w *world) sink() {
	w.Helper()
	cfg := sink.DefaultConfig()
	cfg.Dir = w.parquet
	s, err := sink.New(w.rt, cfg)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	cancel() // it reads to the end before it stops
	if err := <-done; err != nil {
		w.Fatal(err)
	}
}

// clean makes one pass as it would be after some time.
func (w *world) clean(after time.Duration) {
	w.Helper()
	if err := w.pass(after); err != nil {
		w.Fatal(err)
	}
}

func (w *world) pass(after time.Duration) error {
	w.Helper()
	w.rt.Registry = prometheus.NewRegistry()
	cfg := DefaultConfig()
	cfg.KeepVersions, cfg.KeepEvery = 5, 0
	c, err := New(w.rt, cfg, w.parquet, testReaders, nil)
	if err != nil {
		w.Fatal(err)
	}
	c.now = func() time.Time { return time.Now().Add(after) }
	return c.Run(w.Context())
}

// TestNewerRecordsKeepTheirBlobs deletes no blob while a record may name it that this version of prl cannot read.
func TestNewerRecordsKeepTheirBlobs(t *testing.T) {
	w := newWorld(t)
	blobs := map[string]schemas.BlobRef{"of a newer record": w.blob("weights", "newer")}
	rec := &kgo.Record{Topic: w.rt.TopicName(pipeline.TopicPolicies), Value: append([]byte{0xC3, 0x01}, make([]byte, 100)...)}
	if err := w.cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if err := w.pass(2 * time.Hour); !errors.Is(err, schemas.ErrUnknownSchema) {
		t.Fatalf("the pass ended with %v", err)
	}
	if len(w.left(blobs)) == 0 {
		t.Fatal("the blob is gone")
	}
}

// starts is the first offset that is left of each heavy topic.
func (w *world) starts() string {
	w.Helper()
	starts, err := kadm.NewClient(w.cl).ListStartOffsets(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	var list []string
	starts.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			list = append(list, fmt.Sprintf("%s %d", w.rt.BaseName(o.Topic), o.Offset))
		}
	})
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func (w *world) left(named map[string]schemas.BlobRef) []string {
	w.Helper()
	var names []string
	for _, name := range slices.Sorted(maps.Keys(named)) {
		if _, err := w.rt.Blobs.Get(w.Context(), named[name]); err == nil {
			names = append(names, name)
		}
	}
	return names
}

// TestRecordsGoBelowEveryReader deletes what the stage, the sink and the trainer have done with, and nothing above.
func TestRecordsGoBelowEveryReader(t *testing.T) {
	w := newWorld(t)
	for i := range int64(10) {
		w.emit(pipeline.TopicTasks("catch"), &schemas.Task{Env: "catch", GroupID: i, GroupSize: 1, Split: schemas.SplitTrain, Temperature: 1, TopP: 1, MaxTokens: 1, MaxRolloutTokens: 1})
		w.emit(pipeline.TopicTraces, &schemas.Trace{Env: "catch", GroupID: i, GroupSize: 1})
	}
	w.state("envserver", pipeline.TopicTasks("catch"), 7)
	w.state("scorer", pipeline.TopicTraces, 6)
	w.clean(0)
	if got := w.starts(); got != "" {
		t.Fatalf("without a sink records were deleted: topics start at %s", got)
	}
	w.sink()
	w.clean(0)
	if got, want := w.starts(), "tasks.catch 7, traces 6"; got != want {
		t.Fatalf("topics start at %s, want %s", got, want)
	}
	w.state("scorer", pipeline.TopicTraces, 12)
	w.emit(pipeline.TopicTraces, &schemas.Trace{Env: "catch", GroupID: 10, GroupSize: 1})
	w.emit(pipeline.TopicTraces, &schemas.Trace{Env: "catch", GroupID: 11, GroupSize: 1})
	w.clean(0)
	if got, want := w.starts(), "tasks.catch 7, traces 10"; got != want {
		t.Fatalf("topics start at %s, want %s: the sink has not written the rest", got, want)
	}
	w.sink()
	w.clean(0)
	if got, want := w.starts(), "tasks.catch 7, traces 11"; got != want {
		t.Fatalf("topics start at %s, want %s: all but the newest", got, want)
	}
}

// TestBlobsGoWhenNothingNamesThem keeps young blobs, those of records that are left, and those of versions that are kept.
func TestBlobsGoWhenNothingNamesThem(t *testing.T) {
	w := newWorld(t)
	blobs := map[string]schemas.BlobRef{}
	for v := range int64(20) {
		p := &schemas.PolicyVersion{Version: v, Step: v, Kind: "full", NextOffsets: []int64{0}, Config: w.blob("models", "config"), Tokenizer: w.blob("models", "tokenizer"),
			Weights: w.blob("weights", fmt.Sprint("weights ", v))}
		blobs[fmt.Sprintf("weights %02d", v)] = p.Weights
		if v%6 == 0 {
			ref := w.blob("checkpoints", fmt.Sprint("checkpoint ", v))
			blobs[fmt.Sprintf("checkpoint %02d", v)] = ref
			p.Checkpoint = &ref
		}
		w.emit(pipeline.TopicPolicies, p)
		blobs["config"] = p.Config
	}
	for i := range int64(2) {
		ref := w.blob("tensors", fmt.Sprint("tensor ", i))
		blobs[fmt.Sprint("tensor ", i)] = ref
		ref.Path, ref.Bytes = "nodes.0.token_ids", 8
		w.emit(pipeline.TopicTraces, &schemas.Trace{Env: "catch", GroupID: i, GroupSize: 1, Blobs: []schemas.BlobRef{ref},
			Nodes: []schemas.Node{{Parent: -1, Role: "user", Mask: make([]byte, 2), Logprobs: make([]byte, 8)}}})
	}
	pin := int64(4)
	w.emit(pipeline.TopicTasks("catch"), &schemas.Task{Env: "catch", GroupSize: 1, Split: schemas.SplitEval, Eval: "e", PinVersion: &pin, TopP: 1, MaxTokens: 1, MaxRolloutTokens: 1})
	blobs["orphan"] = w.blob("tensors", "orphan")
	w.state("scorer", pipeline.TopicTraces, 1)
	w.sink()
	all := w.left(blobs)
	w.clean(0)
	if got := w.left(blobs); !slices.Equal(got, all) {
		t.Fatalf("young blobs were deleted: %v are left of %v", got, all)
	}
	w.clean(2 * time.Hour)
	want := []string{"checkpoint 00", "checkpoint 18", "config", "tensor 1", "weights 00", "weights 04", "weights 15", "weights 16", "weights 17", "weights 18", "weights 19"}
	if got := w.left(blobs); !slices.Equal(got, want) {
		t.Fatalf("%v are left,\nwant %v", got, want)
	}
}

// TestEveryPassLooksAtTheWhole ends a pass in the middle of reading what to keep: the next one deletes nothing for it.
func TestEveryPassLooksAtTheWhole(t *testing.T) {
	w := newWorld(t)
	const n = 1500 // more than are read at once
	weights := map[string]schemas.BlobRef{"first": w.blob("weights", "first"), "later": w.blob("weights", "later")}
	var records []*kgo.Record
	for v := range int64(n) {
		p := &schemas.PolicyVersion{Version: v, Step: v, Kind: "full", NextOffsets: []int64{0}, Weights: weights["later"]}
		if v == 0 {
			p.Weights = weights["first"]
		}
		rec, err := w.rt.Encode(t.Context(), pipeline.Emission{Topic: pipeline.TopicPolicies, Value: p})
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, rec)
	}
	if err := w.cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	cfg.KeepEvery = 0
	w.rt.Registry = prometheus.NewRegistry()
	c, err := New(w.rt, cfg, w.parquet, testReaders, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.now = func() time.Time { return time.Now().Add(2 * time.Hour) }
	ctx, cancel := context.WithCancel(t.Context())
	w.rt.Options = []kgo.Opt{kgo.WithHooks(onRead(cancel))}
	if err := c.pass(ctx); err == nil {
		t.Fatal("the first pass was not interrupted")
	}
	w.rt.Options = nil
	if err := c.pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := w.left(weights); len(left) != 2 || len(c.known.versions) != n {
		t.Errorf("%v are left, %d versions are known", left, len(c.known.versions))
	}
}

// onRead is called for every record that is read.
type onRead func()

func (f onRead) OnFetchRecordUnbuffered(_ *kgo.Record, polled bool) {
	if polled {
		f()
	}
}
