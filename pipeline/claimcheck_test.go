package pipeline

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/schemas"
)

// tooLong is the tokens of a trace that is no record with its tensors: 13.5 MiB.
const tooLong = 3 << 19

func bigTrace(tokens int) *schemas.Trace {
	t := trace(1, 0)
	t.Nodes = []schemas.Node{{
		Parent: -1, Role: "assistant", TokenIDs: bytes.Repeat([]byte{1, 2, 3, 0}, tokens), Mask: bytes.Repeat([]byte{1}, tokens),
		Logprobs: schemas.PackFloat32s(make([]float32, tokens)),
	}}
	return t
}

func TestClaimCheck(t *testing.T) {
	rt, _ := testRuntime(t)
	want := bigTrace(tooLong)
	sent := bigTrace(tooLong)
	r, err := rt.Encode(t.Context(), Emission{TopicTraces, AutoPartition, sent})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Value) > MaxRecordBytes {
		t.Fatalf("the record has %d bytes", len(r.Value))
	}
	got, err := rt.Decode(t.Context(), &kgo.Record{Topic: r.Topic, Value: r.Value})
	if err != nil {
		t.Fatal(err)
	}
	node := got.Value.(*schemas.Trace).Nodes[0]
	if !bytes.Equal(node.TokenIDs, want.Nodes[0].TokenIDs) || !bytes.Equal(node.Mask, want.Nodes[0].Mask) || !bytes.Equal(node.Logprobs, want.Nodes[0].Logprobs) {
		t.Error("the tensors came back otherwise")
	}
	if small := bigTrace(10); len(mustEncode(t, rt, small).Value) > 1000 || len(small.Blobs) > 0 {
		t.Error("a small record was checked in")
	}
}

func mustEncode(t *testing.T, rt *Runtime, v schemas.Record) *kgo.Record {
	t.Helper()
	r, err := rt.Encode(t.Context(), Emission{TopicTraces, AutoPartition, v})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Tensors of the same bytes, as samples have them by the dozen, are stored once, and every field gets its own back.
func TestClaimCheckStoresEqualTensorsOnce(t *testing.T) {
	rt, _ := testRuntime(t)
	sent, want := bigTrace(tooLong), bigTrace(tooLong)
	for _, trace := range []*schemas.Trace{sent, want} {
		for i := range 4 {
			n := trace.Nodes[0]
			n.Parent = i
			if i == 3 {
				n.TokenIDs = bytes.Repeat([]byte{4, 5, 6, 0}, tooLong)
			}
			trace.Nodes = append(trace.Nodes, n)
		}
	}
	r := mustEncode(t, rt, sent)
	files, err := filepath.Glob(filepath.Join(rt.Blobs.dir, tensorPrefix, "*"))
	if err != nil || len(files) != 3 || len(sent.Blobs) < 8 {
		t.Fatalf("%d blobs for %d tensors, %v; want 3", len(files), len(sent.Blobs), err)
	}
	got, err := rt.Decode(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	for i, n := range got.Value.(*schemas.Trace).Nodes {
		if w := want.Nodes[i]; !bytes.Equal(n.TokenIDs, w.TokenIDs) || !bytes.Equal(n.Logprobs, w.Logprobs) || !bytes.Equal(n.Mask, w.Mask) {
			t.Errorf("node %d came back otherwise", i)
		}
	}
}

// TestClaimCheckRefusesWrongBlobs changes a blob behind the record's back.
func TestClaimCheckRefusesWrongBlobs(t *testing.T) {
	rt, _ := testRuntime(t)
	r := mustEncode(t, rt, bigTrace(tooLong))
	files, err := filepath.Glob(filepath.Join(rt.Blobs.dir, tensorPrefix, "*"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no blobs: %v", err)
	}
	if err := os.WriteFile(files[0], []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Decode(t.Context(), r); err == nil || !strings.Contains(err.Error(), "is not the one its record names") {
		t.Fatalf("error %v", err)
	}
}

func TestBlobsPutMendsATornBlob(t *testing.T) {
	rt, _ := testRuntime(t)
	ref, err := rt.Blobs.Put(t.Context(), "weights", []byte("whole"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(rt.Blobs.dir, filepath.FromSlash(ref.URI)), []byte("wh"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := rt.Blobs.Put(t.Context(), "weights", []byte("whole")); err != nil {
		t.Fatal(err)
	}
	if data, err := rt.Blobs.Get(t.Context(), ref); err != nil || string(data) != "whole" {
		t.Fatalf("%q, %v", data, err)
	}
}

func TestSetUpRefusesTopicsThatLoseRecords(t *testing.T) {
	rt, _ := testRuntime(t)
	cl, err := rt.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	week := "604800000"
	alter := []kadm.AlterConfig{{Op: kadm.SetConfig, Name: "retention.ms", Value: &week}}
	if _, err := kadm.NewClient(cl).AlterTopicConfigs(t.Context(), alter, rt.TopicName(TopicTraces)); err != nil {
		t.Fatal(err)
	}
	if err := rt.SetUp(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "test.traces has retention.ms = 604800000, a run needs -1") {
		t.Fatalf("error %v", err)
	}
}

func TestSetUpRefusesOtherPartitions(t *testing.T) {
	rt, _ := testRuntime(t)
	rt.Run.TracePartitions = 5
	if err := rt.SetUp(t.Context(), nil); err == nil || !strings.Contains(err.Error(), "test.traces has 3 partitions, this configuration asks for 5") {
		t.Fatalf("error %v", err)
	}
}

// TestSetUpWaitsForBrokers begins while fewer brokers have started than a topic needs.
func TestSetUpWaitsForBrokers(t *testing.T) {
	rt, cluster := testRuntime(t)
	rt.Run.Name = "another"
	fired := make(chan struct{}, 1)
	cluster.ControlKey(int16(kmsg.CreateTopics), func(req kmsg.Request) (kmsg.Response, error, bool) {
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		for _, asked := range req.(*kmsg.CreateTopicsRequest).Topics {
			topic := kmsg.NewCreateTopicsResponseTopic()
			topic.Topic, topic.ErrorCode = asked.Topic, kerr.InvalidReplicationFactor.Code
			resp.Topics = append(resp.Topics, topic)
		}
		fired <- struct{}{}
		return resp, nil, true // once
	})
	if err := rt.SetUp(t.Context(), nil); err != nil || len(fired) != 1 {
		t.Fatalf("error %v, refused %d times", err, len(fired))
	}
}

// A record that names two blobs for one tensor is no record of ours: the first is not read a thousand times for it.
func TestTwoBlobsForOneTensor(t *testing.T) {
	rt, _ := testRuntime(t)
	sent := bigTrace(tooLong)
	if _, err := rt.Encode(t.Context(), Emission{TopicTraces, AutoPartition, sent}); err != nil {
		t.Fatal(err)
	}
	if len(sent.Blobs) == 0 {
		t.Fatal("nothing was checked in")
	}
	sent.Blobs = append(sent.Blobs, sent.Blobs[0])
	if err := rt.Redeem(t.Context(), sent); err == nil || !strings.Contains(err.Error(), "names two") {
		t.Errorf("%v", err)
	}
}
