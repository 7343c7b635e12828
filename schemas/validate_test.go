package schemas

import (
	"math"
	"strings"
	"testing"
)

// broken is one rule: what the change breaks, and a word of the error that says so.
type broken[T Record] struct {
	name   string
	change func(T)
	want   string
}

// holds checks that the record is valid as made, and invalid after each change.
func holds[T Record](t *testing.T, valid func() T, rules []broken[T]) {
	t.Helper()
	if err := valid().Validate(); err != nil {
		t.Fatalf("the valid %s is refused: %v", valid().SchemaName(), err)
	}
	for _, c := range rules {
		r := valid()
		c.change(r)
		if err := r.Validate(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s, %s: got %v, want an error with %q", r.SchemaName(), c.name, err, c.want)
		}
	}
}

func TestValidate_Trace(t *testing.T) {
	nan := Float32s(PackFloat32s([]float32{float32(math.NaN()), 0}))
	valid := func() *Trace { return exampleTrace(2, 2) }
	holds(t, valid, []broken[*Trace]{
		{"no env", func(r *Trace) { r.Env = "" }, "env"},
		{"negative group", func(r *Trace) { r.GroupID = -1 }, "group -1"},
		{"empty group", func(r *Trace) { r.GroupSize = 0 }, "of 0"},
		{"rollout below", func(r *Trace) { r.RolloutIndex = -1 }, "rollout -1"},
		{"rollout above", func(r *Trace) { r.RolloutIndex = r.GroupSize }, "rollout 8 of 8"},
		{"attempt below 0", func(r *Trace) { r.Attempt = -1 }, "attempt -1"},
		{"own parent", func(r *Trace) { r.Nodes[1].Parent = 1 }, "parent 1"},
		{"parent below -1", func(r *Trace) { r.Nodes[0].Parent = -2 }, "parent -2"},
		{"odd bytes", func(r *Trace) { r.Nodes[0].TokenIDs = r.Nodes[0].TokenIDs[:7] }, "nodes.0.token_ids: 7 bytes"},
		{"short mask", func(r *Trace) { r.Nodes[1].Mask = r.Nodes[1].Mask[:1] }, "nodes.1.mask has 1"},
		{"no logprobs", func(r *Trace) { r.Nodes[1].Logprobs = nil }, "nodes.1.logprobs has 0"},
		{"logprob NaN", func(r *Trace) { r.Nodes[0].Logprobs = nan }, "nodes.0.logprobs: element 0 is NaN"},
		{"token reward NaN", func(r *Trace) { r.Nodes[0].TokenRewards = nan }, "nodes.0.token_rewards: element 0 is NaN"},
		{"teacher NaN", func(r *Trace) { r.Nodes[0].RefLogprobs = nan }, "nodes.0.ref_logprobs: element 0 is NaN"},
		{"mask above 1", func(r *Trace) { r.Nodes[0].Mask = []byte{0, 2} }, "nodes.0.mask: element 1 is 2"},
		{"short token rewards", func(r *Trace) { r.Nodes[0].TokenRewards = nan[:4] }, "token_rewards has 1"},
		{"short teacher", func(r *Trace) { r.Nodes[0].RefLogprobs = nan[:4] }, "ref_logprobs has 1"},
		{"branch reward NaN", func(r *Trace) { r.Nodes[1].Reward = new(math.NaN()) }, "nodes.1: reward is NaN"},
		{"content before the node", func(r *Trace) { r.Nodes[0].BodyFrom = -1 }, "tokens -1 to"},
		{"content backwards", func(r *Trace) { r.Nodes[0].BodyFrom, r.Nodes[0].BodyTo = 2, 1 }, "tokens 2 to 1"},
		{"content behind the node", func(r *Trace) { r.Nodes[0].BodyTo = 3 }, "to 3 of 2"},
		{"version past the end", func(r *Trace) { r.Nodes[0].Versions[1].Offset = 2 }, "token 2 of 2"},
		{"versions out of order", func(r *Trace) { r.Nodes[0].Versions[1].Offset = 0 }, "token 0 of 2"},
		{"negative version", func(r *Trace) { r.Nodes[0].Versions[0].Version = -1 }, "version -1"},
		{"image without data", func(r *Trace) { r.Nodes[1].Images = []Image{{SHA256: strings.Repeat("0", 64)}} }, "nodes.1.images.0: no data"},
		{"image without hash", func(r *Trace) { r.Nodes[1].Images = []Image{{Data: []byte("png"), SHA256: "12"}} }, "nodes.1.images.0"},
		{"component NaN", func(r *Trace) { r.Rewards["green"] = new(math.NaN()) }, "reward green is NaN"},
		{"reward infinite", func(r *Trace) { r.Reward = new(math.Inf(-1)) }, "reward is -Inf"},
		{"blob of another length", func(r *Trace) { claim(r, "nodes.1.mask", 3) }, "nodes.1.mask has 3"},
		{"blob of negative length", func(r *Trace) { claim(r, "nodes.1.mask", -2) }, "-2 bytes"},
		{"blob of odd length", func(r *Trace) { claim(r, "nodes.0.logprobs", 7) }, "7 bytes"},
	})
	r := valid()
	claim(r, "nodes.1.mask", 2)
	claim(r, "nodes.1.logprobs", 8)
	if err := r.Validate(); err != nil {
		t.Errorf("tensors in the blob store: %v", err)
	}
}

// claim moves a tensor to the blob store as a reference of n bytes.
func claim(r *Trace, path string, n int64) {
	Tensors(r, func(p string, data *[]byte) {
		if p == path {
			*data = nil
			r.Blobs = append(r.Blobs, BlobRef{Path: path, URI: "blobs/x", Bytes: n})
		}
	})
}

func exampleSamples() *SampleGroup {
	return &SampleGroup{Env: "catch", Emitted: 1, Samples: []Sample{{
		TokenIDs: PackInt32s([]int32{1, 2}), Mask: []byte{0, 1}, Logprobs: PackFloat32s([]float32{0, -1}),
		Advantages: PackFloat32s([]float32{0, 2}), Temperatures: PackFloat32s([]float32{1, 1}),
	}}}
}

func TestValidate_SampleGroup(t *testing.T) {
	holds(t, exampleSamples, []broken[*SampleGroup]{
		{"no env", func(r *SampleGroup) { r.Env = "" }, "env"},
		{"negative group", func(r *SampleGroup) { r.GroupID = -1 }, "group -1"},
		{"negative emitted", func(r *SampleGroup) { r.Emitted = -1 }, "-1 emitted"},
		{"samples and a reason", func(r *SampleGroup) { r.Reason = FateErrored }, "reason"},
		{"neither", func(r *SampleGroup) { r.Samples = nil }, "0 samples"},
		{"empty sample", func(r *SampleGroup) { r.Samples[0] = Sample{} }, "empty"},
		{"short advantages", func(r *SampleGroup) { r.Samples[0].Advantages = r.Samples[0].Advantages[:4] }, "advantages has 1"},
		{"short temperatures", func(r *SampleGroup) { r.Samples[0].Temperatures = nil }, "temperatures has 0"},
		{"mask above 1", func(r *SampleGroup) { r.Samples[0].Mask = []byte{0, 255} }, "samples.0.mask: element 1 is 255"},
		{"logprob NaN", func(r *SampleGroup) { r.Samples[0].Logprobs = PackFloat32s([]float32{0, float32(math.NaN())}) }, "element 1 is NaN"},
		{"infinite temperature", func(r *SampleGroup) { r.Samples[0].Temperatures = PackFloat32s([]float32{1, float32(math.Inf(1))}) }, "temperatures: element 1"},
		{"short ce weights", func(r *SampleGroup) { r.Samples[0].CeWeights = make([]byte, 4) }, "ce_weights has 1"},
		{"infinite ce weight", func(r *SampleGroup) { r.Samples[0].CeWeights = PackFloat32s([]float32{float32(math.Inf(1)), 0}) }, "ce_weights: element 0"},
		{"no teacher", func(r *SampleGroup) { r.Samples[0].RefKlWeights = make([]byte, 8) }, "ref_logprobs has 0"},
		{"a teacher for nothing", func(r *SampleGroup) { r.Samples[0].RefLogprobs = make([]byte, 8) }, "ref_kl_weights has 0"},
		{"teacher NaN", func(r *SampleGroup) {
			r.Samples[0].RefKlWeights, r.Samples[0].RefLogprobs = make([]byte, 8), PackFloat32s([]float32{0, float32(math.NaN())})
		}, "ref_logprobs: element 1"},
		{"infinite advantage", func(r *SampleGroup) { r.Samples[0].Advantages = PackFloat32s([]float32{0, float32(math.Inf(1))}) }, "element 1 is +Inf"},
	})
}

func exampleBatch() *MicroBatch {
	return &MicroBatch{Step: 1, Ranks: 2, Rank: 1, Count: 1, SeqLens: PackInt32s([]int32{2, 1}), TokenIDs: PackInt32s([]int32{1, 2, 3}),
		Mask: []byte{0, 1, 1}, Logprobs: make([]byte, 12), Advantages: make([]byte, 12), Temperatures: make([]byte, 12), Samples: make([]PackedSample, 2)}
}

func TestValidate_MicroBatch(t *testing.T) {
	holds(t, exampleBatch, []broken[*MicroBatch]{
		{"step 0", func(r *MicroBatch) { r.Step = 0 }, "step 0"},
		{"rank above", func(r *MicroBatch) { r.Rank = 2 }, "rank 2 of 2"},
		{"index above", func(r *MicroBatch) { r.Index = 1 }, "micro-batch 1 of 1"},
		{"short mask", func(r *MicroBatch) { r.Mask = r.Mask[:2] }, "mask has 2"},
		{"more lengths than samples", func(r *MicroBatch) { r.Samples = r.Samples[:1] }, "2 lengths for 1"},
		{"sum of lengths", func(r *MicroBatch) { r.SeqLens = PackInt32s([]int32{2, 2}) }, "sum to 4"},
		{"empty sample", func(r *MicroBatch) { r.SeqLens = PackInt32s([]int32{3, 0}) }, "sample 1 has 0"},
		{"negative length", func(r *MicroBatch) { r.SeqLens = PackInt32s([]int32{4, -1}) }, "sample 1 has -1"},
		{"mask above 1", func(r *MicroBatch) { r.Mask = []byte{0, 1, 3} }, "mask: element 2 is 3"},
		{"advantage NaN", func(r *MicroBatch) { r.Advantages = PackFloat32s([]float32{0, float32(math.NaN()), 0}) }, "advantages: element 1 is NaN"},
		{"short ce weights", func(r *MicroBatch) { r.CeWeights = make([]byte, 4) }, "ce_weights has 1"},
		{"no teacher", func(r *MicroBatch) { r.RefKlWeights = make([]byte, 12) }, "ref_logprobs has 0"},
		{"odd lengths", func(r *MicroBatch) { r.SeqLens = r.SeqLens[:5] }, "seq_lens: 5 bytes"},
	})
	if err := (&MicroBatch{Step: 1, Ranks: 1, Count: 1}).Validate(); err != nil {
		t.Errorf("a dummy is refused: %v", err)
	}
}

func TestValidate_Coordinates(t *testing.T) {
	holds(t, func() *Task { return &Task{Env: "catch", GroupSize: 2, RolloutIndex: -1} }, []broken[*Task]{
		{"no env", func(r *Task) { r.Env = "" }, "env"},
		{"negative group", func(r *Task) { r.GroupID = -1 }, "group -1"},
		{"empty group", func(r *Task) { r.GroupSize = 0 }, "of 0"},
		{"rollout above", func(r *Task) { r.RolloutIndex = 2 }, "rollout 2 of 2"},
		{"rollout below", func(r *Task) { r.RolloutIndex = -2 }, "rollout -2"},
	})
	holds(t, func() *GroupOutcome { return &GroupOutcome{Env: "catch", Fate: FateStale} }, []broken[*GroupOutcome]{
		{"no env", func(r *GroupOutcome) { r.Env = "" }, "env"},
		{"negative group", func(r *GroupOutcome) { r.GroupID = -1 }, "group -1"},
		{"no fate", func(r *GroupOutcome) { r.Fate = "" }, "fate"},
	})
	holds(t, func() *Request { return &Request{Kind: RequestRefill} }, []broken[*Request]{
		{"kind", func(r *Request) { r.Kind = "more" }, "more"},
	})
	holds(t, func() *PolicyVersion { return &PolicyVersion{Weights: BlobRef{URI: "u", SHA256: "s"}} }, []broken[*PolicyVersion]{
		{"negative version", func(r *PolicyVersion) { r.Version = -1 }, "version -1"},
		{"no hash", func(r *PolicyVersion) { r.Weights.SHA256 = "" }, "SHA-256"},
		{"no URI", func(r *PolicyVersion) { r.Weights.URI = "" }, "weights"},
		{"a delta of nothing", func(r *PolicyVersion) { r.Kind, r.FullSHA256 = KindDelta, "f" }, "SHA-256 is missing"},
		{"a delta that gives nothing", func(r *PolicyVersion) { r.Kind, r.BaseSHA256 = KindDelta, "b" }, "SHA-256 is missing"},
		{"an adapter of nothing", func(r *PolicyVersion) { r.Kind = KindLoRA }, "SHA-256 is missing"},
	})
	holds(t, func() *StageState { return &StageState{Stage: "scorer", Topic: "traces", NextOffset: 3, LowOffset: 3} }, []broken[*StageState]{
		{"no stage", func(r *StageState) { r.Stage = "" }, "stage"},
		{"no topic", func(r *StageState) { r.Topic = "" }, "stage"},
		{"negative partition", func(r *StageState) { r.Partition = -1 }, "/-1"},
		{"negative offset", func(r *StageState) { r.LowOffset = -1 }, "-1 to 3"},
		{"offsets crossed", func(r *StageState) { r.NextOffset = 2 }, "3 to 2"},
	})
	holds(t, func() *EnvInfo { return &EnvInfo{Env: "catch"} }, []broken[*EnvInfo]{
		{"no env", func(r *EnvInfo) { r.Env = "" }, "env"},
		{"negative tasks", func(r *EnvInfo) { r.TrainTasks = -1 }, "-1 training"},
		{"more tasks than indices", func(r *EnvInfo) { r.TrainTasks = 1<<53 + 1 }, "training"},
		{"negative eval tasks", func(r *EnvInfo) { r.EvalTasks = -1 }, "-1 eval"},
	})
	holds(t, func() *EvalResult { return &EvalResult{Eval: "final", Env: "catch", K: 1} }, []broken[*EvalResult]{
		{"no eval", func(r *EvalResult) { r.Eval = "" }, "eval"},
		{"no env", func(r *EvalResult) { r.Env = "" }, "env"},
		{"k", func(r *EvalResult) { r.K = 0 }, "k = 0"},
	})
	holds(t, func() *MetricPoint { return &MetricPoint{Name: "loss"} }, []broken[*MetricPoint]{
		{"no name", func(r *MetricPoint) { r.Name = "" }, "name"},
	})
}
