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

// runOn is a run of a name of its own, with its topics.
func runOn(t testing.TB, brokers []string, changes ...func(*RunConfig)) *Runtime {
	t.Helper()
	rt := runtimeFor(t, brokers, "one")
	for _, change := range changes {
		change(&rt.Run)
	}
	rt.Run.Name = fmt.Sprintf("pipeline-%08x", rand.Uint32())
	if err := rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return rt
}

// another is the runtime of another instance of the same run.
func another(t testing.TB, rt *Runtime, instance string) *Runtime {
	t.Helper()
	other := runtimeFor(t, rt.Brokers, instance)
	other.Run = rt.Run
	return other
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
	need    int // traces of a group
}

func newPairs(_ int32, state []byte) (Core, error) {
	c := &pairs{open: map[int64][]Ref{}, need: 2}
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
	if len(refs) < c.need {
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
	return begin(t, p)
}

// begin is start with a processor that was made.
func begin(t testing.TB, p *Processor) (stop func() error) {
	t.Helper()
	cancel, done := launch(t, p)
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

// run runs a processor to its end; the channel gives Run's error.
func run(t testing.TB, rt *Runtime, cfg ProcessorConfig) (done <-chan error) {
	t.Helper()
	p, err := NewProcessor(rt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	_, done = launch(t, p)
	return done
}

func launch(t testing.TB, p *Processor) (cancel func(), done <-chan error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	ended := make(chan error, 1)
	go func() { ended <- p.Run(ctx) }()
	return cancel, ended
}

// client is a client of the test's own.
func client(t testing.TB, rt *Runtime, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	cl, err := rt.Client(append(opts, kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cl.Close)
	return cl
}

// producer gives a function that writes traces, one after the other.
func producer(t testing.TB, rt *Runtime) func(values ...schemas.Record) {
	t.Helper()
	cl := client(t, rt)
	return func(values ...schemas.Record) {
		t.Helper()
		for _, v := range values {
			r, err := rt.Encode(t.Context(), Emission{TopicTraces, AutoPartition, v})
			if err == nil {
				err = cl.ProduceSync(t.Context(), r).FirstErr()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
}

func produce(t testing.TB, rt *Runtime, values ...schemas.Record) {
	t.Helper()
	producer(t, rt)(values...)
}

// pairsOf are both traces of the groups from first to last.
func pairsOf(first, last int64) []schemas.Record {
	var list []schemas.Record
	for g := first; g <= last; g++ {
		list = append(list, trace(g, 0), trace(g, 1))
	}
	return list
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
