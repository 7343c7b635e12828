package pipeline

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/schemas"
)

// raw reads n committed records of partition 0 of a topic, as they are.
func raw(t *testing.T, rt *Runtime, topic string, n int) []*kgo.Record {
	t.Helper()
	cl := client(t, rt, kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{rt.TopicName(topic): {0: kgo.NewOffset().AtStart()}}))
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var recs []*kgo.Record
	for len(recs) < n {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of %d records on %s: %v", len(recs), n, topic, err)
		}
		recs = append(recs, fetches.Records()...)
	}
	return recs
}

// wordy is pairs, but what it says of group 1 fits no topic.
type wordy struct{ *pairs }

func (c wordy) Process(r Record, out *Out) error {
	err := c.pairs.Process(r, out)
	for _, e := range out.Emitted {
		if group := e.Value.(*schemas.SampleGroup); group.GroupID == 1 {
			group.Filter = strings.Repeat("x", TopicRecordBytes)
		}
	}
	return err
}

// TestEmissionTooLarge has a core that emits what fits no topic, tensors or not. It would fail for ever; a few words take
// its place under its key, which readers refuse, and everything goes on.
func TestEmissionTooLarge(t *testing.T) {
	rt, _ := testRuntime(t)
	log := listen(rt)
	cfg := toyConfig()
	cfg.New = func(n int32, state []byte) (Core, error) {
		core, err := newPairs(n, state)
		return wordy{core.(*pairs)}, err
	}
	stop := start(t, rt, cfg)
	produce(t, rt, pairsOf(0, 4)...)
	recs := raw(t, rt, TopicSamples, 5)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	for _, r := range recs {
		_, err := rt.Decode(t.Context(), r)
		if large := string(r.Key) == "1"; large != (err != nil) || large && !strings.Contains(string(r.Value), "record too large") {
			t.Errorf("the record of group %s says %.200q: %v", r.Key, r.Value, err)
		}
	}
	if !log.has("make rollouts shorter or groups smaller") || log.has("record of 0 bytes") || log.has("starts over") {
		t.Errorf("the log does not say what to do: %s", log)
	}
}

// TestLargerThanBatches has outputs that no batch of usual size takes: the first makes batches larger, which is no failure, and all
// of them come once.
func TestLargerThanBatches(t *testing.T) {
	rt, _ := testRuntime(t)
	log := listen(rt)
	onePartition(t, rt, 6)
	stop := start(t, rt, echoConfig(func(trace *schemas.Trace) {
		if group := trace.GroupID / int64(rt.Partitions(TopicTraces)); group%2 == 1 {
			trace.Nodes = bigTrace(batchBytes / 8).Nodes // nine bytes a token
		}
	}))
	seen := map[int64]int{}
	for _, r := range committed(t, rt, TopicEvalTraces, 6) {
		seen[r.Value.(*schemas.Trace).GroupID]++
	}
	noMore(t, rt, TopicEvalTraces, 6)
	if err := stop(); err != nil || len(seen) != 6 {
		t.Fatalf("groups came %v times, %v", seen, err)
	}
	if said := log.text.String(); strings.Count(said, "they become larger") != 1 || strings.Contains(said, "starts over") {
		t.Errorf("the log says %s", said)
	}
}

// TestStateTooLarge stops a stage whose state fits no topic.
func TestStateTooLarge(t *testing.T) {
	rt, _ := testRuntime(t)
	cfg := toyConfig()
	cfg.New = func(int32, []byte) (Core, error) { return hoarder{}, nil }
	produce(t, rt, trace(0, 0))
	fatal(t, rt, cfg, "state of traces/0: state: record of")
}

// hoarder is a core that keeps too much.
type hoarder struct{}

func (hoarder) Process(Record, *Out) error { return nil }
func (hoarder) State() ([]byte, error)     { return make([]byte, TopicRecordBytes), nil }

// TestInvariant_HugeBadInputStopsNothing sends garbage as large as a topic just takes, in value, key and headers: what goes to
// dlq with it fits all the same.
func TestInvariant_HugeBadInputStopsNothing(t *testing.T) {
	rt, _ := testRuntime(t)
	huge := bytes.Repeat([]byte("x"), TopicRecordBytes-128)
	name := rt.TopicName(TopicTraces)
	cl := client(t, rt)
	for _, r := range []*kgo.Record{
		{Topic: name, Value: huge},
		{Topic: name, Value: []byte("x"), Key: huge},
		{Topic: name, Value: []byte("x"), Headers: []kgo.RecordHeader{{Key: "small", Value: []byte("y")}, {Key: "huge", Value: huge}}},
	} {
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	stop := start(t, rt, toyConfig())
	produce(t, rt, pairsOf(0, 0)...)
	once(t, rt, 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	dlq := raw(t, rt, TopicDLQ, 3)
	if string(dlq[2].Headers[3].Value) != "y" || len(dlq[0].Value) < 1<<20 {
		t.Error("more is lost on the way to dlq than must be")
	}
}
