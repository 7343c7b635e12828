package trainer

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/schemas"
)

// kinds are those of a run's versions.
func kinds(t *testing.T, rt *pipeline.Runtime) (list []string, all history) {
	t.Helper()
	all, err := versions(t.Context(), rt)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range all {
		list = append(list, v.Kind)
	}
	return list, all
}

// Versions between two whole ones are published as what changed. A restart goes on from them, with a learner that is exact
// and with one that takes the published weights.
func TestDeltas(t *testing.T) {
	for _, exact := range []bool{true, false} {
		run := testRun("deltas")
		rt := testRuntime(t, testCluster(t), run)
		trainer := func() *Trainer {
			cfg, model := testConfig()
			cfg.Learner, cfg.FullInterval, cfg.CheckpointInterval = LearnerNull, 3, 5 // whose weights never change
			tr, err := New(rt, cfg, model)
			if err != nil {
				t.Fatal(err)
			}
			hook(tr, exact, func(int64, Learner) {})
			return tr
		}
		packSteps(t, rt, 1, 2)
		stop, wait := start(t, trainer())
		published(t, rt, 3)
		stop()
		if err := wait(); err != nil {
			t.Fatal(err)
		}
		packSteps(t, rt, 3, 5)
		runToEnd(t, trainer())
		got, all := kinds(t, rt)
		// Version 0 and 5 have checkpoints, 3 is due.
		if want := []string{"full", "delta", "delta", "full", "delta", "full"}; !slices.Equal(got, want) {
			t.Errorf("exact %v: kinds %v, want %v", exact, got, want)
		}
		for i, v := range all {
			if v.WeightsSHA256() != all[0].Weights.SHA256 || v.Kind == schemas.KindDelta && (v.BaseSHA256 != all[i-1].WeightsSHA256() || v.Weights.Bytes >= all[0].Weights.Bytes) {
				t.Errorf("exact %v: version %d is %+v", exact, i, v)
			}
		}
	}
}

// A whole version is published where all weights have changed.
func TestDeltaThatIsNotLess(t *testing.T) {
	rt := testRuntime(t, testCluster(t), testRun("no-deltas"))
	packSteps(t, rt, 1, rt.Run.MaxSteps)
	tr := testTrainer(t, rt)
	tr.cfg.FullInterval = 100
	runToEnd(t, tr)
	checkChain(t, rt, rt.Run.MaxSteps)
}

// An adapter is trained and published, on the weights of version 0; a restart goes on from it, and an export has both.
func TestTorchLoRA(t *testing.T) {
	need.Torch(t, torchDir)
	rt := testRuntime(t, testCluster(t), testRun("lora"))
	cfg, model := torchConfig()
	cfg.Torch.LoRA = LoRAConfig{Rank: 2, Alpha: 4, Targets: []string{"q_proj", "v_proj"}}
	cfg.CheckpointInterval = 2
	trainer := func() *Trainer {
		tr, err := New(rt, cfg, model)
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	packSteps(t, rt, 1, 3)
	stop, wait := start(t, trainer())
	published(t, rt, 4)
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	packSteps(t, rt, 4, 5)
	resumed := trainer()
	var steps []int64
	hook(resumed, false, func(s int64, _ Learner) { steps = append(steps, s) })
	runToEnd(t, resumed)
	if !slices.Equal(steps, []int64{3, 4, 5}) {
		t.Errorf("steps %v after the checkpoint of version 2", steps)
	}
	got, all := kinds(t, rt)
	if want := []string{"full", "lora", "lora", "lora", "lora", "lora"}; !slices.Equal(got, want) {
		t.Fatalf("kinds %v, want %v", got, want)
	}
	for i, v := range all[1:] {
		if v.BaseSHA256 != all[0].Weights.SHA256 || v.Weights.SHA256 == all[i].Weights.SHA256 {
			t.Errorf("version %d is %+v", i+1, v)
		}
	}
	out := filepath.Join(t.TempDir(), "export")
	if err := Export(t.Context(), rt, model, 5, out); err != nil {
		t.Fatal(err)
	}
	zero, err := rt.Blobs.Get(t.Context(), all[0].Weights)
	if err != nil {
		t.Fatal(err)
	}
	if diff := largest(t, zero, readFile(t, out, fileWeights)); diff < 1e-4 || diff > 1 {
		t.Errorf("with the adapter weights differ by %g", diff)
	}
	cfg.Torch.LoRA = LoRAConfig{Alpha: 1}
	if _, err := opened(t, rt).resume(t.Context(), all); err == nil || !strings.Contains(err.Error(), "trainer.torch.lora.rank = 0: set it back") {
		t.Errorf("without an adapter: %v", err)
	}
}
