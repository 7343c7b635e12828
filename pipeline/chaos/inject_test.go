package chaos

import (
	"bytes"
	"slices"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// testInjector has the topics of a run, and a hundred traces to write again.
func testInjector(t *testing.T) (*injector, *pipeline.Runtime) {
	t.Helper()
	rt := &pipeline.Runtime{Run: pipeline.DefaultRunConfig(), Instance: "test"}
	rt.Run.Name = runName
	var topics []kfake.Opt
	for _, name := range append(allTopics(), pipeline.TopicTasks(envName)) {
		topics = append(topics, kfake.SeedTopics(rt.Partitions(name), rt.TopicName(name)))
	}
	cluster, err := kfake.NewCluster(append(topics, kfake.NumBrokers(1), kfake.BrokerConfigs(map[string]string{"message.max.bytes": "16777216"}))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	rt.Brokers = cluster.ListenAddrs()
	if rt.Blobs, err = pipeline.OpenBlobs(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	in, err := newInjector(rt, envName)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.cl.Close)
	for id := range int64(100) {
		value, err := schemas.Encode(&schemas.Trace{Env: envName, GroupID: id, GroupSize: 4, Nodes: []schemas.Node{{
			Parent: -1, Role: "user", TokenIDs: schemas.PackInt32s([]int32{1, 2}), Mask: []byte{0, 0}, Logprobs: schemas.PackFloat32s([]float32{0, 0}),
		}}})
		if err != nil {
			t.Fatal(err)
		}
		in.keep(&kgo.Record{Topic: rt.TopicName(pipeline.TopicTraces), Partition: int32(id % 3), Key: []byte{byte(id)}, Value: value})
	}
	return in, rt
}

// written reads everything back.
func written(t *testing.T, rt *pipeline.Runtime) (recs []*kgo.Record) {
	t.Helper()
	var names []string
	for _, name := range append(allTopics(), pipeline.TopicTasks(envName)) {
		names = append(names, rt.TopicName(name))
	}
	cl, err := rt.Client(kgo.ConsumeTopics(names...), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	ends.Each(func(o kadm.ListedOffset) { want += int(o.Offset) })
	for len(recs) < want {
		cl.PollFetches(t.Context()).EachRecord(func(r *kgo.Record) { recs = append(recs, r) })
	}
	return recs
}

// TestReplaysAreWhatWasWritten: a repeated record is the very one a stage wrote, where it wrote it.
func TestReplaysAreWhatWasWritten(t *testing.T) {
	for _, k := range []Kind{Duplicate, Reorder} {
		t.Run(string(k), func(t *testing.T) {
			in, rt := testInjector(t)
			if err := in.inject(t.Context(), k, 7); err != nil {
				t.Fatal(err)
			}
			recs := written(t, rt)
			if len(recs) == 0 || len(recs) != in.written(k) || len(in.mustBeRefused()) > 0 {
				t.Fatalf("%d records, %d counted, %v to be refused", len(recs), in.written(k), in.mustBeRefused())
			}
			for _, r := range recs {
				if !injected(r) {
					t.Error("a record is not marked")
				}
				if !slices.ContainsFunc(in.old, func(o *kgo.Record) bool {
					return o.Topic == r.Topic && o.Partition == r.Partition && bytes.Equal(o.Key, r.Key) && bytes.Equal(o.Value, r.Value)
				}) {
					t.Errorf("%s/%d has a record that no stage wrote", r.Topic, r.Partition)
				}
			}
		})
	}
}

// TestBadRecordsAreBad: what must be refused is refused by the decoder of every reader, and nothing is written where a
// stage may take it for its own (batches), or where it proves nothing (dlq).
func TestBadRecordsAreBad(t *testing.T) {
	for _, k := range []Kind{Truncate, Garbage, Oversize, FalseClaim} {
		t.Run(string(k), func(t *testing.T) {
			in, rt := testInjector(t)
			for seed := range uint64(10) {
				if err := in.inject(t.Context(), k, seed); err != nil {
					t.Fatal(err)
				}
				if k == Oversize {
					break
				}
			}
			recs := written(t, rt)
			if len(recs) == 0 || len(recs) != in.written(k) {
				t.Fatalf("%d records, %d counted", len(recs), in.written(k))
			}
			for _, r := range recs {
				if _, err := rt.Decode(t.Context(), r); err == nil {
					t.Errorf("%s/%d takes a record of %d bytes", r.Topic, r.Partition, len(r.Value))
				}
				if topic := rt.BaseName(r.Topic); topic == pipeline.TopicBatches || topic == pipeline.TopicDLQ || !injected(r) {
					t.Errorf("a record was written to %s, marked: %v", topic, injected(r))
				}
			}
		})
	}
}

// TestInjectIsTheSeeds: the same seed writes the same records.
func TestInjectIsTheSeeds(t *testing.T) {
	values := func(seed uint64) (all []byte) {
		in, rt := testInjector(t)
		if err := in.inject(t.Context(), Truncate, seed); err != nil {
			t.Fatal(err)
		}
		recs := written(t, rt)
		slices.SortFunc(recs, func(a, b *kgo.Record) int { return bytes.Compare(a.Value, b.Value) })
		for _, r := range recs {
			all = append(all, r.Value...)
		}
		return all
	}
	if !bytes.Equal(values(1), values(1)) {
		t.Error("one seed wrote two things")
	}
	if bytes.Equal(values(1), values(2)) {
		t.Error("two seeds wrote the same")
	}
}
