package pipeline

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/schemas"
)

// testRuntime is a run on a broker of its own.
func testRuntime(t testing.TB, opts ...kfake.Opt) (*Runtime, *kfake.Cluster) {
	t.Helper()
	cluster, err := kfake.NewCluster(append([]kfake.Opt{kfake.NumBrokers(1)}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	rt := runtimeFor(t, cluster.ListenAddrs(), "one")
	if err := rt.SetUp(t.Context(), []string{"toy"}); err != nil {
		t.Fatal(err)
	}
	return rt, cluster
}

func runtimeFor(t testing.TB, brokers []string, instance string) *Runtime {
	t.Helper()
	blobs, err := OpenBlobs(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return newRuntime(brokers, instance, blobs, t.Output())
}

func newRuntime(brokers []string, instance string, blobs *Blobs, log io.Writer) *Runtime {
	run := DefaultRunConfig()
	run.Name = "test"
	return &Runtime{Run: run, Brokers: brokers, Instance: instance, Blobs: blobs,
		Log: slog.New(slog.NewTextHandler(log, nil)), Metrics: NewMetrics(prometheus.NewRegistry())}
}

// pairs is a toy core: it waits for both traces of a group and emits the group. Its state is the groups it decided.
type pairs struct {
	Decided []int64
	open    map[int64][]Ref
}

func newPairs(_ int32, state []byte) (Core, error) {
	c := &pairs{open: map[int64][]Ref{}}
	if state == nil {
		return c, nil
	}
	return c, json.Unmarshal(state, c)
}

func (c *pairs) Process(r Record, out *Out) error {
	trace := r.Value.(*schemas.Trace)
	if trace.Env == "poison" {
		return fmt.Errorf("poison")
	}
	if slices.Contains(c.Decided, trace.GroupID) {
		out.Finish(r.Ref)
		return nil
	}
	refs := append(c.open[trace.GroupID], r.Ref)
	if len(refs) < 2 {
		c.open[trace.GroupID] = refs
		return nil
	}
	delete(c.open, trace.GroupID)
	for _, ref := range refs {
		out.Finish(ref)
	}
	c.Decided = append(c.Decided, trace.GroupID)
	out.Emit(TopicSamples, &schemas.SampleGroup{Env: "toy", GroupID: trace.GroupID, Emitted: 2, Reason: schemas.FateFiltered})
	return nil
}

func (c *pairs) State() ([]byte, error) { return json.Marshal(c) }

func toyConfig() ProcessorConfig {
	return ProcessorConfig{Stage: "scorer", Inputs: []string{TopicTraces}, Proof: []string{TopicSamples}, New: newPairs}
}

// start runs a processor until the returned function is called, which gives Run's error.
func start(t testing.TB, rt *Runtime, cfg ProcessorConfig) (stop func() error) {
	t.Helper()
	p, err := NewProcessor(rt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx) }()
	return func() error {
		cancel()
		select {
		case err := <-done:
			return err
		case <-time.After(20 * time.Second):
			t.Fatal("the processor does not stop")
			return nil
		}
	}
}

func produce(t testing.TB, rt *Runtime, values ...schemas.Record) {
	t.Helper()
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, v := range values {
		r, err := rt.Encode(t.Context(), Emission{TopicTraces, AutoPartition, v})
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
}

func trace(group int64, index int) *schemas.Trace {
	return &schemas.Trace{Env: "toy", GroupID: group, GroupSize: 2, RolloutIndex: index}
}

// committed reads topic until want records have come.
func committed(t testing.TB, rt *Runtime, topic string, want int) []Record {
	t.Helper()
	f, err := rt.Follow(topic)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var recs []Record
	for len(recs) < want {
		got, err := f.Poll(ctx)
		if err != nil || ctx.Err() != nil {
			t.Fatalf("%d of %d records on %s: %v", len(recs), want, topic, err)
		}
		recs = append(recs, got...)
	}
	return recs
}

// noMore fails if topic holds more than want committed records.
func noMore(t testing.TB, rt *Runtime, topic string, want int) {
	t.Helper()
	f, err := rt.Follow(topic)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	recs, err := f.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(recs) != want {
		t.Errorf("%s holds %d records, want %d", topic, len(recs), want)
	}
}

func deleteGroup(t testing.TB, rt *Runtime, group string) {
	t.Helper()
	cl, err := rt.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	// A static member stays in the group until it leaves or its session ends.
	leave := kadm.LeaveGroup(group).InstanceIDs(rt.Instance)
	if _, err := adm.LeaveGroup(t.Context(), leave); err != nil {
		t.Fatal(err)
	}
	resp, err := adm.DeleteGroup(t.Context(), group)
	if err == nil {
		err = resp.Err
	}
	if err != nil {
		t.Fatal(err)
	}
}

func recreateTopic(t testing.TB, rt *Runtime, topic string) {
	t.Helper()
	cl, err := rt.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).DeleteTopic(t.Context(), rt.TopicName(topic)); err != nil {
		t.Fatal(err)
	}
	if err := rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
}

// oncePerGroup fails unless every group from 0 to n-1 is there exactly once.
func oncePerGroup(t testing.TB, recs []Record, n int) {
	t.Helper()
	seen := map[int64]int{}
	for _, r := range recs {
		seen[r.Value.(*schemas.SampleGroup).GroupID]++
	}
	for id := range int64(n) {
		if seen[id] != 1 {
			t.Errorf("group %d came %d times", id, seen[id])
		}
	}
}

func TestProcessorFinishesOpenGroupsAfterRestarts(t *testing.T) {
	rt, _ := testRuntime(t)
	const groups = 60
	order := rand.New(rand.NewPCG(1, 2)).Perm(2 * groups)
	for round := range 4 {
		stop := start(t, rt, toyConfig())
		for _, i := range order[round*groups/2 : (round+1)*groups/2] {
			produce(t, rt, trace(int64(i/2), i%2))
		}
		committed(t, rt, TopicState, 1) // it has worked
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	stop := start(t, rt, toyConfig())
	recs := committed(t, rt, TopicSamples, groups)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	oncePerGroup(t, recs, groups)
}

func TestProcessorSharesPartitions(t *testing.T) {
	rt, cluster := testRuntime(t)
	stops := []func() error{start(t, rt, toyConfig())}
	const groups = 40
	for i := range groups {
		produce(t, rt, trace(int64(i), 0))
		if i == 20 {
			other := runtimeFor(t, cluster.ListenAddrs(), "two")
			stops = append(stops, start(t, other, toyConfig()))
		}
	}
	for i := range groups {
		produce(t, rt, trace(int64(i), 1))
	}
	recs := committed(t, rt, TopicSamples, groups)
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	oncePerGroup(t, recs, groups)
}

func TestInvariant_BadInputStopsNothing(t *testing.T) {
	rt, _ := testRuntime(t)
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	bad := &kgo.Record{Topic: rt.TopicName(TopicTraces), Key: []byte("7"), Value: []byte("no record")}
	if err := cl.ProduceSync(t.Context(), bad).FirstErr(); err != nil {
		t.Fatal(err)
	}
	refused := trace(3, 0)
	refused.Env = "poison"
	produce(t, rt, refused, trace(0, 0), trace(0, 1))
	stop := start(t, rt, toyConfig())
	oncePerGroup(t, committed(t, rt, TopicSamples, 1), 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	dlq, err := rt.Client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{rt.TopicName(TopicDLQ): {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer dlq.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	errors := map[string]string{}
	for len(errors) < 2 {
		fetches := dlq.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of 2 records in dlq: %v", len(errors), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				if h.Key == "prl-error" {
					errors[string(r.Key)] = string(h.Value)
				}
			}
		})
	}
	if errors["traces/0/1"] != "poison" || errors["traces/0/0"] == "" {
		t.Fatalf("dlq holds %v", errors)
	}
}
