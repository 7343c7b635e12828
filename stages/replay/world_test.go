package replay

import (
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/pelletier/go-toml/v2"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/scorer"
	"github.com/prl-project/prl/stages/scorer/filter"
)

// memory is a source made of slices.
type memory map[string]map[int32][]Record

func (m memory) Spans(topic string) map[int32]pipeline.Span {
	spans := map[int32]pipeline.Span{}
	for p, recs := range m[topic] {
		spans[p] = pipeline.Span{End: recs[len(recs)-1].Offset + 1}
	}
	return spans
}

func (m memory) Read(_ context.Context, topic string, partition int32) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		for _, r := range m[topic][partition] {
			if !yield(r, nil) {
				return
			}
		}
	}
}

// fixture is the run that a version of prl has recorded in ordered mode.
func fixture(t *testing.T) (memory, pipeline.RunConfig) {
	t.Helper()
	var settings struct{ Run pipeline.RunConfig }
	text, err := os.ReadFile("../testdata/run-v1.toml")
	if err != nil {
		t.Fatal(err)
	}
	if err := toml.Unmarshal(text, &settings); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open("../testdata/run-v1.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	m := memory{}
	for lines := json.NewDecoder(z); ; {
		var r struct {
			Topic     string
			Partition int32
			Offset    int64
			Key       []byte
			Value     []byte
		}
		if err := lines.Decode(&r); errors.Is(err, io.EOF) {
			return m, settings.Run
		} else if err != nil {
			t.Fatal(err)
		}
		if m[r.Topic] == nil {
			m[r.Topic] = map[int32][]Record{}
		}
		ref := pipeline.Ref{Topic: r.Topic, Partition: r.Partition, Offset: r.Offset}
		m[r.Topic][r.Partition] = append(m[r.Topic][r.Partition], Record{Ref: ref, Key: string(r.Key), decode: func(context.Context) (schemas.Record, error) {
			return schemas.Decode(r.Value)
		}})
	}
}

// settings are those of the scorer in every run of these tests.
func settings() scorer.Config {
	cfg := scorer.DefaultConfig()
	cfg.Partial = scorer.Drop
	return cfg
}

// same is the configuration under which a run was recorded.
func same(run pipeline.RunConfig) Config {
	return other(run, run, settings())
}

func other(recorded, run pipeline.RunConfig, cfg scorer.Config) Config {
	return Config{
		Recorded: recorded, Run: run, Topic: pipeline.TopicTraces, Select: Everything(), Begin: packer.Begin,
		Scorer: scorer.New(run, cfg, 3), Packer: packer.New(run, packer.DefaultConfig()),
	}
}

func recompute(t *testing.T, src Source, cfg Config) *Comparison {
	t.Helper()
	c, err := Recompute(t.Context(), src, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// A world is a run of the real scorers and packer on a broker, for which the test plays all other stages.
type world struct {
	rt  *pipeline.Runtime
	rng *rand.Rand
	cl  *kgo.Client
	// seen by the follower
	outcomes, steps int64
	request         *schemas.Request
	follower        *pipeline.Follower
}

const groupSize = 4

// newWorld starts two scorers and a packer, which end with the test or with stop.
func newWorld(t *testing.T, brokers []string, run pipeline.RunConfig) (w *world, stop func()) {
	t.Helper()
	w = &world{rt: pipelinetest.Runtime(t, brokers, run), rng: rand.New(rand.NewPCG(5, 6))}
	if err := w.rt.SetUp(t.Context(), []string{"catch"}); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.cl, err = w.rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cl.Close)
	if w.follower, err = w.rt.Follow(pipeline.TopicOutcomes, pipeline.TopicRequests, pipeline.TopicBatches); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.follower.Close)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	start := func(instance, stage, input string, core func(int32, []byte) (pipeline.Core, error)) {
		rt := pipelinetest.Runtime(t, brokers, run)
		rt.Instance, rt.Blobs = instance, w.rt.Blobs
		p, err := pipeline.NewProcessor(rt, pipeline.ProcessorConfig{Stage: stage, Inputs: []string{input}, New: core})
		if err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := p.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}
	start("one", "scorer", pipeline.TopicTraces, scorer.New(run, settings(), 3))
	start("two", "scorer", pipeline.TopicTraces, scorer.New(run, settings(), 3))
	start("one", "packer", pipeline.TopicSamples, packer.New(run, packer.DefaultConfig()))
	stop = sync.OnceFunc(func() {
		cancel()
		running.Wait()
	})
	t.Cleanup(stop)
	return w, stop
}

// rollout is a trace of a group that version made, with a reward that chance gives.
func (w *world) rollout(group int64, index int, version int64) *schemas.Trace {
	n := 3 + w.rng.IntN(6)
	ids, mask, logprobs := make([]int32, n), make([]byte, n), make([]float32, n)
	for i := range n {
		ids[i] = int32(w.rng.IntN(100))
		if i > 0 {
			mask[i], logprobs[i] = 1, -float32(w.rng.Float64())
		}
	}
	t := &schemas.Trace{
		Env: "catch", EnvVersion: "1", GroupID: group, GroupSize: groupSize, RolloutIndex: index, TaskIndex: group % 7,
		Split: schemas.SplitTrain, Task: "{}", Seed: group*groupSize + int64(index), Reward: new(float64(w.rng.IntN(3))),
		PolicyStart: &version, Nodes: []schemas.Node{
			{Parent: -1, Role: "user", Content: "0", TokenIDs: schemas.PackInt32s([]int32{1, 2}), Mask: []byte{0, 0}, Logprobs: schemas.PackFloat32s([]float32{0, 0})},
			{Parent: 0, Role: "assistant", Content: "l", TokenIDs: schemas.PackInt32s(ids), Mask: mask, Logprobs: schemas.PackFloat32s(logprobs),
				Temperature: 1, Versions: []schemas.VersionRun{{Version: version}}},
		},
	}
	if w.rng.IntN(12) == 0 {
		t.Nodes, t.Reward, t.PolicyStart = nil, nil, nil
		t.Errors = []schemas.TraceError{{Type: schemas.ErrorCrashed, Message: "by chance"}}
	}
	return t
}

func (w *world) write(t *testing.T, traces ...*schemas.Trace) {
	t.Helper()
	w.rng.Shuffle(len(traces), func(i, j int) { traces[i], traces[j] = traces[j], traces[i] })
	var recs []*kgo.Record
	for _, trace := range traces {
		r, err := w.rt.Encode(t.Context(), pipeline.Emission{Topic: pipeline.TopicTraces, Partition: pipeline.AutoPartition, Value: trace})
		if err != nil {
			t.Fatal(err)
		}
		recs = append(recs, r)
	}
	if err := w.cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

// await waits until the packer has done something that done accepts.
func (w *world) await(t *testing.T, done func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for !done() {
		recs, err := w.follower.Poll(ctx)
		if err != nil || ctx.Err() != nil {
			t.Fatalf("after %d outcomes and %d steps: %v, %v", w.outcomes, w.steps, err, ctx.Err())
		}
		for _, r := range recs {
			switch v := r.Value.(type) {
			case *schemas.GroupOutcome:
				w.outcomes++
			case *schemas.MicroBatch:
				w.steps = max(w.steps, v.Step)
			case *schemas.Request:
				if v.Kind == schemas.RequestWave {
					w.request = v
				}
			}
		}
	}
}

// playAsync records groups of which each was begun by the version before the step it comes to, or an older one; some
// traces come twice, and one partition gets what nobody can read.
func (w *world) playAsync(t *testing.T, groups int64) {
	t.Helper()
	garbage := &kgo.Record{Topic: w.rt.TopicName(pipeline.TopicTraces), Value: []byte("garbage")}
	if err := w.cl.ProduceSync(t.Context(), garbage).FirstErr(); err != nil {
		t.Fatal(err)
	}
	const wave = 20
	for first := int64(0); first < groups; first += wave {
		var traces []*schemas.Trace
		for id := first; id < first+wave; id++ {
			version := max(0, w.steps-int64(w.rng.IntN(w.rt.Run.MaxOffPolicySteps+2)))
			for i := range groupSize {
				trace := w.rollout(id, i, version)
				traces = append(traces, trace)
				if w.rng.IntN(5) == 0 {
					traces = append(traces, trace)
				}
			}
		}
		w.write(t, traces...)
		// At most a batch of groups can be held without an outcome.
		w.await(t, func() bool { return w.outcomes > first+wave-int64(w.rt.Run.BatchSize/groupSize) })
	}
}

// playOrdered records all steps of a run in ordered mode.
func (w *world) playOrdered(t *testing.T) {
	t.Helper()
	next := int64(0)
	for step := int64(1); step <= w.rt.Run.MaxSteps; step++ {
		missing, wave := w.rt.Run.BatchSize, 1
		for w.steps < step {
			first := next
			next += int64((missing + groupSize - 1) / groupSize)
			var traces []*schemas.Trace
			for id := first; id < next; id++ {
				for i := range groupSize {
					trace := w.rollout(id, i, step-1)
					trace.Step, trace.Wave, trace.WaveFirst, trace.WaveLast = step, wave, first, next-1
					traces = append(traces, trace)
				}
			}
			w.write(t, traces...)
			w.request = nil
			w.await(t, func() bool { return w.steps >= step || w.request != nil })
			if w.request != nil {
				missing, wave = w.request.Rollouts, w.request.Wave
			}
		}
	}
	w.await(t, func() bool { return w.outcomes == next })
}

// monitored sends on what the filter of zero advantages takes.
func monitored() scorer.Config {
	cfg := settings()
	cfg.Filters.ZeroAdvantage.Mode = filter.Monitor
	return cfg
}
