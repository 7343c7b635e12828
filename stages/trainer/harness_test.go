package trainer

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// deadline bounds every wait of the tests.
const deadline = 60 * time.Second

func testCluster(t testing.TB) *kfake.Cluster {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	return cluster
}

// testRun is a run of two ranks and five steps.
func testRun(name string) pipeline.RunConfig {
	run := pipeline.DefaultRunConfig()
	run.Name, run.Ranks, run.MaxSteps, run.SeqLen = name, 2, 5, 64
	return run
}

func testRuntime(t testing.TB, cluster *kfake.Cluster, run pipeline.RunConfig) *pipeline.Runtime {
	t.Helper()
	return setUp(t, cluster, t.TempDir(), run)
}

// setUp makes the topics of a run whose blobs are in dir.
func setUp(t testing.TB, cluster *kfake.Cluster, dir string, run pipeline.RunConfig) *pipeline.Runtime {
	t.Helper()
	rt, err := runtimeAt(cluster.ListenAddrs(), dir, run)
	if err != nil {
		t.Fatal(err)
	}
	rt.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	if err := rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return rt
}

func runtimeAt(brokers []string, dir string, run pipeline.RunConfig) (*pipeline.Runtime, error) {
	blobs, err := pipeline.OpenBlobs(dir)
	return &pipeline.Runtime{Run: run, Brokers: brokers, Instance: "one", Blobs: blobs, Log: slog.New(slog.DiscardHandler),
		Metrics: pipeline.NewMetrics(prometheus.NewRegistry())}, err
}

func testConfig() (Config, ModelConfig) {
	cfg := DefaultConfig()
	cfg.CheckpointInterval = 3
	return cfg, ModelConfig{HiddenSize: 8, Layers: 1, Heads: 2, KVHeads: 1, FFN: 16, MaxPosition: 32, Alphabet: "abc"}
}

func testTrainer(t testing.TB, rt *pipeline.Runtime) *Trainer {
	t.Helper()
	cfg, model := testConfig()
	tr, err := New(rt, cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

// start runs a trainer; wait gives Run's error, stop ends it first.
func start(t testing.TB, tr *Trainer) (stop context.CancelFunc, wait func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- tr.Run(ctx) }()
	t.Cleanup(cancel)
	return cancel, func() error {
		select {
		case err := <-done:
			return err
		case <-time.After(deadline):
			t.Fatal("the trainer does not end")
			return nil
		}
	}
}

// runToEnd runs a trainer until the final version.
func runToEnd(t testing.TB, tr *Trainer) {
	t.Helper()
	_, wait := start(t, tr)
	if err := wait(); err != nil {
		t.Fatal(err)
	}
}

// microBatches is a step of two ranks with two micro-batches each, the last of them a dummy.
func microBatches(step int64) []*schemas.MicroBatch {
	rng := rand.New(rand.NewPCG(uint64(step), 7))
	var all []*schemas.MicroBatch
	tokens := int64(0)
	for rank := range 2 {
		for index := range 2 {
			m := &schemas.MicroBatch{Step: step, Rank: rank, Ranks: 2, Index: index, Count: 2}
			all = append(all, m)
			if rank == 1 && index == 1 {
				continue
			}
			var ids, lens []int32
			var logprobs, advantages, temperatures []float32
			for s := range 3 {
				begin, n := step-1, 3+rng.IntN(4)
				m.Samples = append(m.Samples, schemas.PackedSample{Env: "toy", GroupID: step, RolloutIndex: s, PolicyStart: &begin})
				lens = append(lens, int32(n))
				for i := range n {
					ids = append(ids, int32(rng.IntN(11)))
					m.Mask = append(m.Mask, byte(min(i, 1)))
					logprobs = append(logprobs, -2-rng.Float32())
					advantages = append(advantages, rng.Float32()-0.5)
					temperatures = append(temperatures, 1)
				}
				tokens += int64(n - 1)
			}
			m.SeqLens, m.TokenIDs, m.Logprobs = schemas.PackInt32s(lens), schemas.PackInt32s(ids), schemas.PackFloat32s(logprobs)
			m.Advantages, m.Temperatures = schemas.PackFloat32s(advantages), schemas.PackFloat32s(temperatures)
		}
	}
	for _, m := range all {
		m.LossTokens = []schemas.LossTokens{{Component: ComponentRL, Tokens: tokens}}
	}
	return all
}

// pack writes micro-batches to batches as the packer does: in one transaction.
func pack(t testing.TB, rt *pipeline.Runtime, end kgo.TransactionEndTry, micro ...*schemas.MicroBatch) {
	t.Helper()
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(rt.TopicName("packer")))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	var records []*kgo.Record
	for _, m := range micro {
		r, err := rt.Encode(t.Context(), pipeline.Emission{Topic: pipeline.TopicBatches, Partition: pipeline.AutoPartition, Value: m})
		if err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	if err := pipeline.ProduceAll(t.Context(), cl, records); err != nil {
		t.Fatal(err)
	}
	if err := cl.EndTransaction(t.Context(), end); err != nil {
		t.Fatal(err)
	}
}

// packSteps writes steps from first to last, with an aborted transaction before each, which must not be seen.
func packSteps(t testing.TB, rt *pipeline.Runtime, first, last int64) {
	t.Helper()
	for s := first; s <= last; s++ {
		pack(t, rt, kgo.TryAbort, microBatches(s+100)...)
		pack(t, rt, kgo.TryCommit, microBatches(s)...)
	}
}

// published waits for n versions.
func published(t testing.TB, rt *pipeline.Runtime, n int) []*schemas.PolicyVersion {
	t.Helper()
	f, err := rt.Follow(pipeline.TopicPolicies)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var all []*schemas.PolicyVersion
	for len(all) < n {
		recs, err := f.Poll(ctx)
		if err != nil || ctx.Err() != nil {
			t.Fatalf("%d of %d versions: %v", len(all), n, err)
		}
		for _, r := range recs {
			all = append(all, r.Value.(*schemas.PolicyVersion))
		}
	}
	return all
}

// checkChain fails unless the run holds exactly the versions 0 to last, each with its step's offsets, blobs and metrics.
func checkChain(t testing.TB, rt *pipeline.Runtime, last int64) []*schemas.PolicyVersion {
	t.Helper()
	history, err := versions(t.Context(), rt)
	if err != nil {
		t.Fatal(err)
	}
	if len(history) != int(last)+1 {
		t.Fatalf("%d versions, want %d", len(history), last+1)
	}
	f, err := rt.Follow(pipeline.TopicMetrics)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	points, err := f.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	count := map[string]int{}
	for _, r := range points {
		p := r.Value.(*schemas.MetricPoint)
		count[fmt.Sprint(*p.Step, p.Name)]++
	}
	total := 0
	for i, v := range history {
		if v.Step != int64(i) || v.Kind != kindFull || v.Final != (v.Step == rt.Run.MaxSteps) {
			t.Errorf("version %d: step %d, kind %q, final %v", i, v.Step, v.Kind, v.Final)
		}
		for _, ref := range []schemas.BlobRef{v.Weights, v.Config, v.Tokenizer} {
			if _, err := rt.Blobs.Get(t.Context(), ref); err != nil {
				t.Errorf("version %d: %v", i, err)
			}
		}
		for r, o := range v.NextOffsets {
			if i > 0 && o < history[i-1].NextOffsets[r]+2 {
				t.Errorf("version %d ends at %v, the one before at %v: a step has two records of each rank", i, v.NextOffsets, history[i-1].NextOffsets)
			}
		}
		for name := range v.Metrics {
			if n := count[fmt.Sprint(v.Step, name)]; n != 1 {
				t.Errorf("metric %s of step %d was written %d times", name, v.Step, n)
			}
		}
		total += len(v.Metrics)
	}
	if total != len(points) {
		t.Errorf("%d metric points, versions carry %d", len(points), total)
	}
	return history
}

func hashes(history []*schemas.PolicyVersion) []string {
	var list []string
	for _, v := range history {
		list = append(list, v.Weights.SHA256)
	}
	return list
}

// reference is the hashes of a run without any fault.
func reference(t testing.TB, cluster *kfake.Cluster) []string {
	t.Helper()
	rt := testRuntime(t, cluster, testRun("reference"))
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	runToEnd(t, testTrainer(t, rt))
	return hashes(checkChain(t, rt, rt.Run.MaxSteps))
}

// hooked is a learner that tells a test what happens to it.
type hooked struct {
	Learner
	exact  bool
	onStep func(step int64)
}

func (h hooked) Exact() bool { return h.exact }

func (h hooked) Step(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Metrics, error) {
	h.onStep(step)
	return h.Learner.Step(ctx, step, micro)
}

// hook puts onStep before every step of the trainer's learners.
func hook(tr *Trainer, exact bool, onStep func(step int64, l Learner)) {
	inner := tr.newLearner
	tr.newLearner = func() (Learner, error) {
		l, err := inner()
		return hooked{l, exact, func(step int64) { onStep(step, l) }}, err
	}
}
