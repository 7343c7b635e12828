package trainer

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

func newNative(t testing.TB) *Native {
	t.Helper()
	cfg, model := testConfig()
	n, err := NewNative(testRun("native"), cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestCheckpointGoesOnAsTheOriginalWould(t *testing.T) {
	a, b := newNative(t), newNative(t)
	for s := int64(1); s <= 3; s++ {
		step(t, a, s, microBatches(s))
	}
	weights, checkpoint := state(t, a)
	if err := load(t, b, weights, checkpoint); err != nil {
		t.Fatal(err)
	}
	step(t, a, 4, microBatches(4))
	step(t, b, 4, microBatches(4))
	if !bytes.Equal(weightsOf(t, a), weightsOf(t, b)) {
		t.Error("weights differ after a restart from the checkpoint")
	}
}

func TestNativeLearns(t *testing.T) {
	n := newNative(t)
	m := microBatches(1)[0]
	m.Advantages = schemas.PackFloat32s(slices.Repeat([]float32{1}, m.TokenIDs.Len()))
	var first, last float64
	for s := int64(1); s <= 20; s++ {
		b := batchOf(m)
		logprobs, _, err := lm.NewLearner(n.learner.Model()).Score(b)
		if err != nil {
			t.Fatal(err)
		}
		m.Logprobs = schemas.PackFloat32s(logprobs) // on-policy
		got := step(t, n, s, []*schemas.MicroBatch{m})
		if math.Abs(got.Values["ratio"]-1) > 1e-6 {
			t.Fatalf("step %d: ratio %v on-policy", s, got.Values["ratio"])
		}
		if last = got.Values["nll"]; s == 1 {
			first = last
		}
	}
	if last > first-0.05 {
		t.Errorf("rewarded tokens went from NLL %v to %v", first, last)
	}
}

func TestSchedulesReachTheirEnd(t *testing.T) {
	run, cfg := testRun("schedule"), DefaultConfig()
	cfg.EntropyCoef, cfg.EntropyFinal = 0.02, 0.01
	for s, want := range map[int64]float64{1: 0.02, 3: 0.015, 5: 0.01, 9: 0.01} {
		if got := cfg.entropyCoef(run, s); math.Abs(got-want) > 1e-12 {
			t.Errorf("entropy coefficient at step %d is %v, want %v", s, got, want)
		}
	}
	if got := cfg.schedule(run).At(5); math.Abs(got-cfg.LR*cfg.LRFinal) > 1e-12 {
		t.Errorf("learning rate at the last step is %v", got)
	}
	run.MaxSteps = 1
	if got := cfg.entropyCoef(run, 1); got != 0.01 {
		t.Errorf("entropy coefficient of the only step is %v", got)
	}
}
