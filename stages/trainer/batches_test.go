package trainer

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// trainOne gives a trainer the micro-batches of one step and returns how it ended.
func trainOne(t *testing.T, name string, micro []*schemas.MicroBatch) (*pipeline.Runtime, error) {
	run := testRun(name)
	run.MaxSteps = 1
	rt := testRuntime(t, testCluster(t), run)
	pack(t, rt, kgo.TryCommit, micro...)
	_, wait := start(t, testTrainer(t, rt))
	return rt, wait()
}

func TestInvariant_Staleness(t *testing.T) {
	for _, c := range []struct {
		policyStart int64
		ok          bool
	}{{3, true}, {4, true}, {5, true}, {2, false}, {6, false}} {
		m := microBatches(6)[0]
		m.Samples[1].PolicyStart = &c.policyStart
		if err := checkStaleness(m, 2); (err == nil) != c.ok {
			t.Errorf("policy_start %d at step 6 with max_off_policy_steps = 2: %v", c.policyStart, err)
		}
	}
	frozen := microBatches(6)[0]
	frozen.Samples[0].PolicyStart = nil
	if err := checkStaleness(frozen, 0); err != nil {
		t.Errorf("a frozen policy's sample went stale: %v", err)
	}

	micro := microBatches(1)
	future := int64(1)
	micro[2].Samples[2] = schemas.PackedSample{Env: "toy", GroupID: 77, RolloutIndex: 3, PolicyStart: &future}
	rt, err := trainOne(t, "stale", micro)
	if !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "env toy, group 77, rollout 3") || !strings.Contains(err.Error(), "batches/1@0") {
		t.Errorf("the trainer ended with %v", err)
	}
	checkChain(t, rt, 0)
}

func TestInconsistentBatchesStop(t *testing.T) {
	for name, breakIt := range map[string]func(m []*schemas.MicroBatch){
		"step":  func(m []*schemas.MicroBatch) { m[0].Step = 2 },
		"index": func(m []*schemas.MicroBatch) { m[1].Index = 0 },
		"count": func(m []*schemas.MicroBatch) { m[2].Count, m[3].Count = 3, 3 },
		"ranks": func(m []*schemas.MicroBatch) { m[1].Ranks = 3 },
		"loss-tokens": func(m []*schemas.MicroBatch) {
			m[3].LossTokens = []schemas.LossTokens{{Component: ComponentRL, Tokens: 1}}
		},
		"component": func(m []*schemas.MicroBatch) {
			for _, mb := range m {
				mb.LossTokens[0].Component = "ce"
			}
		},
		"vocabulary": func(m []*schemas.MicroBatch) { m[0].TokenIDs[0] = 99 },
	} {
		t.Run(name, func(t *testing.T) {
			micro := microBatches(1)
			breakIt(micro)
			rt, err := trainOne(t, name, micro)
			if !errors.Is(err, pipeline.ErrFatal) {
				t.Errorf("the trainer ended with %v", err)
			}
			checkChain(t, rt, 0)
		})
	}
}

// TestForeignRecordIsRefused trains past a record that no packer wrote, and puts it into dlq, once for all replays.
func TestForeignRecordIsRefused(t *testing.T) {
	run := testRun("foreign")
	run.MaxSteps = 1
	rt := testRuntime(t, testCluster(t), run)
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: rt.TopicName(pipeline.TopicBatches), Value: []byte("no record")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	pack(t, rt, kgo.TryCommit, microBatches(1)...)
	_, wait := start(t, testTrainer(t, rt))
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	checkChain(t, rt, 1)
	reader, err := rt.Client(kgo.ConsumeTopics(rt.TopicName(pipeline.TopicDLQ)), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	recs := reader.PollFetches(ctx).Records()
	if len(recs) != 1 || string(recs[0].Value) != "no record" || string(recs[0].Key) != "batches/0/0" {
		t.Errorf("dlq holds %d records: %v", len(recs), recs)
	}
}

func TestUndecodableBatchStops(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("undecodable"))
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: rt.TopicName(pipeline.TopicBatches), Key: []byte("0"), Value: []byte("no record")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	_, wait := start(t, testTrainer(t, rt))
	if err := wait(); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "batches/0@0") {
		t.Errorf("the trainer ended with %v", err)
	}
}

func TestNonFiniteGradientIsSkipped(t *testing.T) {
	micro := microBatches(1)
	values := micro[0].Advantages.Values()
	for i := range values {
		values[i] = 3e38
	}
	micro[0].Advantages = schemas.PackFloat32s(values)
	values = micro[0].Logprobs.Values()
	for i := range values {
		values[i] = -80
	}
	micro[0].Logprobs = schemas.PackFloat32s(values)
	rt, err := trainOne(t, "skipped", micro)
	if err != nil {
		t.Fatal(err)
	}
	history := checkChain(t, rt, 1)
	if !history[1].Skipped || !history[1].Final || history[1].Weights.SHA256 != history[0].Weights.SHA256 {
		t.Errorf("version 1 is %+v", history[1])
	}
}
