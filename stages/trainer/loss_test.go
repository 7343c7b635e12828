package trainer

import (
	"errors"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// imitated is a step of which the first micro-batch of each rank also imitates: every second token of rl is one of ce, and
// every third has a teacher.
func imitated(step int64) []*schemas.MicroBatch {
	micro := microBatches(step)
	var ceTokens, refKLTokens int64
	for _, m := range micro {
		if m.Index > 0 {
			continue
		}
		n := m.TokenIDs.Len()
		ce, refKL, ref := make([]float32, n), make([]float32, n), make([]float32, n)
		for i, on := range m.Mask {
			ref[i] = -1 - float32(i%5)/4
			if on == 1 && i%2 == 0 {
				ce[i] = 0.5
				ceTokens++
			}
			if on == 1 && i%3 == 0 {
				refKL[i] = 2
				refKLTokens++
			}
		}
		m.CeWeights, m.RefKlWeights, m.RefLogprobs = schemas.PackFloat32s(ce), schemas.PackFloat32s(refKL), schemas.PackFloat32s(ref)
	}
	for _, m := range micro {
		m.LossTokens = append(m.LossTokens, schemas.LossTokens{Component: ComponentCE, Tokens: ceTokens}, schemas.LossTokens{Component: ComponentRefKL, Tokens: refKLTokens})
	}
	return micro
}

// joined is a step as one micro-batch of one rank.
func joined(micro []*schemas.MicroBatch) *schemas.MicroBatch {
	one := &schemas.MicroBatch{Step: micro[0].Step, Ranks: 1, Count: 1, LossTokens: micro[0].LossTokens}
	for _, m := range micro {
		one.SeqLens = append(one.SeqLens, m.SeqLens...)
		one.TokenIDs = append(one.TokenIDs, m.TokenIDs...)
		one.Mask = append(one.Mask, m.Mask...)
		one.Logprobs = append(one.Logprobs, m.Logprobs...)
		one.Advantages = append(one.Advantages, m.Advantages...)
		one.Temperatures = append(one.Temperatures, m.Temperatures...)
		one.Samples = append(one.Samples, m.Samples...)
		zeros := make(schemas.Float32s, len(m.Logprobs))
		if m.CeWeights == nil {
			one.CeWeights, one.RefKlWeights, one.RefLogprobs = append(one.CeWeights, zeros...), append(one.RefKlWeights, zeros...), append(one.RefLogprobs, zeros...)
			continue
		}
		one.CeWeights, one.RefKlWeights, one.RefLogprobs = append(one.CeWeights, m.CeWeights...), append(one.RefKlWeights, m.RefKlWeights...), append(one.RefLogprobs, m.RefLogprobs...)
	}
	return one
}

// Gradients are summed over micro-batches and divided by the tokens of each component in the step: how samples are spread
// over micro-batches and ranks changes nothing but rounding.
func TestGradientsAreSummedOverMicroBatches(t *testing.T) {
	micro := imitated(1)
	a, b := newNative(t), newNative(t)
	many, single := step(t, a, 1, micro), step(t, b, 1, []*schemas.MicroBatch{joined(micro)})
	for name, v := range single.Values {
		if got, ok := many.Values[name]; !ok || math.Abs(got-v) > 1e-5*max(1, math.Abs(v)) {
			t.Errorf("%s = %v over %d micro-batches, %v in one", name, got, len(micro), v)
		}
	}
	for i, name := range []string{"tokens", "tokens_ce", "tokens_ref_kl"} {
		if n := float64(micro[0].LossTokens[i].Tokens); n == 0 || single.Values[name] != n {
			t.Errorf("%s = %v, packed are %v", name, single.Values[name], n)
		}
	}
	if v := single.Values; math.Abs(v["loss"]-v["loss_rl"]-v["loss_ce"]-v["loss_ref_kl"]) > 1e-12 || v["loss_rl"] == 0 || v["loss_ce"] == 0 || v["loss_ref_kl"] == 0 {
		t.Errorf("the loss is not the sum of its components: %v", v)
	}
	if math.Abs(single.Values["loss_ce"]-0.5*single.Values["nll_ce"]) > 1e-9 {
		t.Errorf("with all weights 0.5 the loss of ce is %v, its NLL %v", single.Values["loss_ce"], single.Values["nll_ce"])
	}
}

// The figures of a component are there where it has tokens.
func TestFiguresOfComponents(t *testing.T) {
	always := []string{"loss", "tokens", "lr", "entropy_coef", "grad_norm"}
	rl := []string{"entropy", "nll", "loss_rl", "ratio", "kl", "masked"}
	for name, test := range map[string]struct {
		leave []string
		want  []string
	}{
		"rl":     {[]string{ComponentRL}, rl},
		"ce":     {[]string{ComponentCE}, []string{"loss_ce", "nll_ce", "tokens_ce"}},
		"ref_kl": {[]string{ComponentRefKL}, []string{"entropy", "nll", "loss_ref_kl", "kl_teacher", "tokens_ref_kl"}},
		"echo":   {[]string{ComponentRL, ComponentCE}, append([]string{"loss_ce", "nll_ce", "tokens_ce"}, rl...)},
	} {
		micro := imitated(1)
		for _, m := range micro {
			if !slices.Contains(test.leave, ComponentRL) {
				m.Mask = make(schemas.Uint8s, len(m.Mask))
			}
			if !slices.Contains(test.leave, ComponentCE) {
				m.CeWeights = nil
			}
			if !slices.Contains(test.leave, ComponentRefKL) {
				m.RefKlWeights, m.RefLogprobs = nil, nil
			}
			m.LossTokens = slices.DeleteFunc(m.LossTokens, func(l schemas.LossTokens) bool { return !slices.Contains(test.leave, l.Component) })
		}
		got := step(t, newNative(t), 1, micro)
		if want := append(test.want, always...); !slices.Equal(slices.Sorted(maps.Keys(got.Values)), slices.Sorted(slices.Values(want))) {
			t.Errorf("%s: figures %v, want %v", name, slices.Sorted(maps.Keys(got.Values)), want)
		}
		if got.Skipped || got.Values["loss"] == 0 || got.Values["grad_norm"] == 0 {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// The divergence from the teacher is measured against the teacher's log-probabilities, and so is the loss.
func TestTeacher(t *testing.T) {
	micro := imitated(1)
	was := step(t, newNative(t), 1, micro).Values
	for _, m := range micro {
		ref := m.RefLogprobs.Values()
		for i := range ref {
			ref[i] -= 2
		}
		m.RefLogprobs = schemas.PackFloat32s(ref)
	}
	if is := step(t, newNative(t), 1, micro).Values; math.Abs(is["kl_teacher"]-was["kl_teacher"]-2) > 1e-5 || is["loss_ref_kl"] <= was["loss_ref_kl"] {
		t.Errorf("a teacher who thinks less of the tokens by 2 nats moves the divergence from %v to %v, the loss from %v to %v",
			was["kl_teacher"], is["kl_teacher"], was["loss_ref_kl"], is["loss_ref_kl"])
	}
}

// A batch whose numbers of tokens are not what the loss can be divided by is refused.
func TestUncountedTokens(t *testing.T) {
	for name, spoil := range map[string]func(m *schemas.MicroBatch){
		"no tokens of loss ref_kl": func(m *schemas.MicroBatch) { m.LossTokens = m.LossTokens[:2] },
		"fewer of loss ce":         func(m *schemas.MicroBatch) { m.LossTokens[1].Tokens = 1 },
		"unknown":                  func(m *schemas.MicroBatch) { m.LossTokens[1].Component = "kl" },
	} {
		micro := imitated(1)
		for _, m := range micro {
			spoil(m)
		}
		if _, err := trainStep(t.Context(), newNative(t), 1, micro); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "loss") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every value of trainer.loss is a loss of its own, with bounds that matter.
func TestLosses(t *testing.T) {
	cfg, model := testConfig()
	cfg.KLTau = 0
	made := map[string]string{}
	train := func(name string, cfg Config) {
		t.Helper()
		if err := cfg.Validate(); err != nil {
			t.Fatal(err)
		}
		n, err := NewNative(testRun("losses"), cfg, model)
		if err != nil {
			t.Fatal(err)
		}
		step(t, n, 1, microBatches(1))
		weights := sum(weightsOf(t, n))
		if twin, ok := made[weights]; ok {
			t.Errorf("%s makes the weights of %s", name, twin)
		}
		made[weights] = name
	}
	train("the default", cfg)
	for _, s := range lossSettings {
		c := cfg
		c.Loss = s.loss
		if *s.value(&c) = 0.01; s.loss == LossGSPO {
			*s.value(&c) = 0.3
		}
		train(s.key, c)
	}
	for _, loss := range []string{LossPPO, LossGSPO} {
		c := cfg
		c.Loss = loss
		train(loss, c)
	}
}

// On the samples of the policy itself nothing is out of bounds, and all losses are one.
func TestLossesAgreeOnPolicy(t *testing.T) {
	cfg, model := testConfig()
	want := ""
	for _, loss := range []string{LossDPPO, LossIPO, LossPPO, LossGSPO, LossTIS} {
		cfg.Loss = loss
		n, err := NewNative(testRun("on-policy"), cfg, model)
		if err != nil {
			t.Fatal(err)
		}
		for s := int64(1); s <= 3; s++ {
			m := joined(microBatches(s))
			m.CeWeights, m.RefKlWeights, m.RefLogprobs = nil, nil, nil
			logprobs, _, err := lm.NewLearner(n.learner.Model()).Score(batchOf(m))
			if err != nil {
				t.Fatal(err)
			}
			m.Logprobs = schemas.PackFloat32s(logprobs)
			step(t, n, s, []*schemas.MicroBatch{m})
		}
		if got := sum(weightsOf(t, n)); want == "" {
			want = got
		} else if got != want {
			t.Errorf("%s makes other weights than %s", loss, LossDPPO)
		}
	}
}

func TestLossSettings(t *testing.T) {
	for _, s := range lossSettings {
		c := DefaultConfig()
		c.Loss = s.loss
		*s.value(&c) = 0.125
		if err := c.Validate(); err != nil {
			t.Errorf("%s with loss = %s: %v", s.key, s.loss, err)
		}
		*s.value(&c) = -1
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "trainer."+s.key+" = -1: from ") {
			t.Errorf("%s = -1: %v", s.key, err)
		}
		*s.value(&c), c.Loss = 0.125, LossTIS
		if s.loss == LossTIS {
			c.Loss = LossDPPO
		}
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "trainer."+s.key+" = 0.125: a setting of trainer.loss = ") {
			t.Errorf("%s with loss = %s: %v", s.key, c.Loss, err)
		}
	}
}

// Cross-entropy makes the tokens it is given more probable, whatever sampled them.
func TestNativeImitates(t *testing.T) {
	n := newNative(t)
	m := imitated(1)[0]
	m.Mask, m.RefKlWeights, m.RefLogprobs = make(schemas.Uint8s, len(m.Mask)), nil, nil
	m.LossTokens = []schemas.LossTokens{{Component: ComponentRL}, m.LossTokens[1]}
	first := step(t, n, 1, []*schemas.MicroBatch{m}).Values["nll_ce"]
	for s := int64(2); s < 20; s++ {
		step(t, n, s, []*schemas.MicroBatch{m})
	}
	if last := step(t, n, 20, []*schemas.MicroBatch{m}).Values["nll_ce"]; last > first-0.05 {
		t.Errorf("the NLL of demonstrations went from %v to %v", first, last)
	}
}
