package trainer

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// deadline bounds every wait of the tests; some of them start several workers, which takes seconds each.
const deadline = 3 * time.Minute

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
	return &pipeline.Runtime{Run: run, Brokers: brokers, Instance: "one", Blobs: blobs, Scratch: filepath.Join(dir, "..", "scratch"), Log: slog.New(slog.DiscardHandler),
		Metrics: pipeline.NewMetrics(prometheus.NewRegistry())}, err
}

func testConfig() (Config, ModelConfig) {
	cfg := DefaultConfig()
	cfg.CheckpointInterval = 3
	return cfg, ModelConfig{Type: "llama", HiddenSize: 8, Layers: 1, Heads: 2, KVHeads: 1, FFN: 16, MaxPosition: 32, Alphabet: "abc"}
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

// ofWork are the figures that every learner's steps have.
var ofWork = map[string]bool{figureSpeed: true, figureWait: true, figureTrain: true, figureSave: true}

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
	count, work := map[string]int{}, 0
	for _, r := range points {
		p := r.Value.(*schemas.MetricPoint)
		if count[fmt.Sprint(*p.Step, p.Name)]++; ofWork[p.Name] || p.Name == figureMFU || p.Name == figureMemory {
			work++
		}
	}
	total := 0
	for i, v := range history {
		if v.Step != int64(i) || v.Kind != schemas.KindFull || v.Final != (v.Step == rt.Run.MaxSteps) {
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
	for s := int64(1); s <= last; s++ {
		for name := range ofWork {
			if n := count[fmt.Sprint(s, name)]; n != 1 {
				t.Errorf("figure %s of step %d was written %d times", name, s, n)
			}
		}
	}
	if total != len(points)-work {
		t.Errorf("%d metric points, %d of them of the work; versions carry %d", len(points), work, total)
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

func (h hooked) Prepare(ctx context.Context, step int64, micro []*schemas.MicroBatch) (Step, error) {
	train, err := h.Learner.Prepare(ctx, step, micro)
	return func(ctx context.Context) (Metrics, error) {
		h.onStep(step)
		return train(ctx)
	}, err
}

// hook puts onStep before every step of the trainer's learners.
func hook(tr *Trainer, exact bool, onStep func(step int64, l Learner)) {
	inner := tr.newLearner
	tr.newLearner = func(ctx context.Context, base string) (Learner, error) {
		l, err := inner(ctx, base)
		return hooked{l, exact, func(step int64) { onStep(step, l) }}, err
	}
}

// state is a learner's weights and checkpoint.
func state(t testing.TB, l Learner) (weights, checkpoint []byte) {
	t.Helper()
	s, err := l.Snapshot(t.Context(), true)
	if err != nil {
		t.Fatal(err)
	}
	read := func(write func(context.Context, string) error) []byte {
		path := filepath.Join(t.TempDir(), "state")
		if err := write(t.Context(), path); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	return read(s.Weights), read(s.Checkpoint)
}

func weightsOf(t testing.TB, l Learner) []byte {
	t.Helper()
	weights, _ := state(t, l)
	return weights
}

// load gives a learner weights and, unless it is nil, a checkpoint.
func load(t testing.TB, l Learner, weights, checkpoint []byte) error {
	t.Helper()
	dir := t.TempDir()
	put := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o666); err != nil {
			t.Fatal(err)
		}
		return path
	}
	from := ""
	if checkpoint != nil {
		from = put("checkpoint", checkpoint)
	}
	return l.Load(t.Context(), put("weights", weights), from)
}

func step(t testing.TB, l Learner, s int64, micro []*schemas.MicroBatch) Metrics {
	t.Helper()
	m, err := trainStep(t.Context(), l, s, micro)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func trainStep(ctx context.Context, l Learner, s int64, micro []*schemas.MicroBatch) (Metrics, error) {
	train, err := l.Prepare(ctx, s, micro)
	if err != nil {
		return Metrics{}, err
	}
	return train(ctx)
}
