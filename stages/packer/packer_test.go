package packer

import (
	"bytes"
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

func TestCut(t *testing.T) {
	r := newRunner(t, config(), DefaultConfig())
	if o := feed(t, r, group(1, version(0), 4, 6)); len(o.batches)+len(o.outcomes) != 0 {
		t.Fatalf("half a batch gave %v", o)
	}
	o := feed(t, r, without(2, 2, "filtered", "zero_advantage"), group(0, version(0), 10, 3))
	if got := fates(o); got != "2 filtered zero_advantage; 0 packed 1; 1 packed 1; " {
		t.Fatalf("outcomes: %s", got)
	}
	if len(o.batches) != 4 {
		t.Fatalf("%d micro-batches for 23 tokens on two ranks", len(o.batches))
	}
	for _, p := range o.outcomes[1:] {
		for _, f := range p.Rollouts {
			if f.Fate != schemas.FatePacked {
				t.Errorf("group %d: %+v", p.GroupID, f)
			}
		}
	}
	want := map[string]float64{
		"reward catch": 0.5, "groups filtered": 1, "groups packed": 2, "rollouts": 4, "tokens": 23, "trained_tokens": 19,
		"padding": 17.0 / 40, "off_policy_max": 0, "off_policy_mean": 0,
		"fate_rollouts catch packed": 4, "fate_tokens catch packed": 23.0 / 4, "fate_reward catch packed": 0.5,
	}
	for _, m := range o.metrics {
		name := strings.Join(strings.Fields(m.Name+" "+m.Labels["env"]+" "+m.Labels["fate"]), " ")
		if w, ok := want[name]; !ok || w != m.Value || *m.Step != 1 || m.TimeMs != 0 {
			t.Errorf("%s = %v in step %d, want %v", name, m.Value, *m.Step, w)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		t.Errorf("missing: %v", want)
	}
	if left := r.Unfinished(); len(left) != 0 {
		t.Errorf("%d groups are unfinished", len(left))
	}
}

func TestBatchTokens(t *testing.T) {
	run := config()
	run.BatchTokens = 12
	r := newRunner(t, run, DefaultConfig())
	if o := feed(t, r, group(0, nil, 5), group(1, nil, 6)); len(o.batches) != 0 {
		t.Error("cut at 11 tokens")
	}
	if o := feed(t, r, group(2, nil, 2)); len(o.batches) == 0 {
		t.Error("not cut at 13 tokens")
	}
}

func TestMicroBatchTensors(t *testing.T) {
	run := config()
	run.Ranks = 1
	a, b := group(0, version(0), 3, 2), group(1, nil, 2, 1)
	o := feed(t, newRunner(t, run, DefaultConfig()), b, a)
	if len(o.batches) != 1 {
		t.Fatalf("%d micro-batches", len(o.batches))
	}
	mb := o.batches[0]
	if got := mb.TokenIDs.Values(); !reflect.DeepEqual(got, []int32{0, 1, 2, 100, 101, 0, 1, 100}) {
		t.Errorf("ids %v", got)
	}
	if !bytes.Equal(mb.Mask, []byte{0, 1, 1, 0, 1, 0, 1, 0}) {
		t.Errorf("mask %v", mb.Mask)
	}
	for _, values := range []schemas.Float32s{mb.Logprobs, mb.Advantages} {
		if got := values.Values(); !reflect.DeepEqual(got, []float32{0, -1, -2, 0, -1, 0, -1, 0}) {
			t.Errorf("values %v", got)
		}
	}
	if got := mb.SeqLens.Values(); !reflect.DeepEqual(got, []int32{3, 2, 2, 1}) {
		t.Errorf("lengths %v", got)
	}
	origins := []schemas.PackedSample{
		{Env: "catch", GroupID: 0, RolloutIndex: 0, PolicyStart: version(0)}, {Env: "catch", GroupID: 0, RolloutIndex: 1, PolicyStart: version(0)},
		{Env: "catch", GroupID: 1, RolloutIndex: 0}, {Env: "catch", GroupID: 1, RolloutIndex: 1},
	}
	if !reflect.DeepEqual(mb.Samples, origins) {
		t.Errorf("samples %+v", mb.Samples)
	}
}

func TestDummies(t *testing.T) {
	run := config()
	run.BatchSize, run.Ranks = 1, 3
	o := feed(t, newRunner(t, run, DefaultConfig()), group(0, nil, 4))
	if len(o.batches) != 3 {
		t.Fatalf("%d micro-batches for three ranks", len(o.batches))
	}
	for _, mb := range o.batches[1:] {
		if len(mb.Samples) != 0 || len(mb.SeqLens) != 0 || mb.TokenIDs.Len() != 1 || mb.Mask[0] != 0 || mb.LossTokens[0].Tokens != 3 {
			t.Errorf("%+v", mb)
		}
	}
}

func TestOverlong(t *testing.T) {
	tooLong := func() *schemas.SampleGroup { return group(0, nil, 4, 14, 3, 3) }
	cfg := DefaultConfig()
	if got := fates(feed(t, newRunner(t, config(), cfg), tooLong())); got != "0 overlong; " {
		t.Errorf("drop: %s", got)
	}

	cfg.Overlong = OverlongError
	r := newRunner(t, config(), cfg)
	if feed(t, r, tooLong()); len(r.Poison) != 1 || !errors.Is(r.Poison[0], pipeline.ErrFatal) {
		t.Errorf("error: %v", r.Poison)
	}

	cfg.Overlong = OverlongCut
	g := tooLong()
	g.Samples[1].Mask = make(schemas.Uint8s, 14)
	g.Samples[1].Mask[9], g.Samples[1].Mask[12] = 1, 1
	g.Samples[2] = sample(2, 14, nil)
	copy(g.Samples[2].Mask, make([]byte, 10))
	o := feed(t, newRunner(t, config(), cfg), g)
	if got := fates(o); got != "0 packed 1; " {
		t.Fatalf("cut: %s", got)
	}
	if f := o.outcomes[0].Rollouts; f[1].Fate != "packed" || f[2].Fate != "overlong" {
		t.Errorf("cut: %+v", f)
	}
	tokens, trained := 0, int64(0)
	for _, mb := range o.batches {
		tokens += mb.TokenIDs.Len()
		trained += countLoss(mb.Mask, nil, nil).rl
	}
	if tokens != 4+10+3 || trained != 3+1+2 || o.batches[0].LossTokens[0].Tokens != trained {
		t.Errorf("cut: %d tokens, %d trained, %v", tokens, trained, o.batches[0].LossTokens)
	}
	if len(g.Samples[1].Mask) != 14 {
		t.Error("the record was changed")
	}
}

func TestInvariant_Staleness(t *testing.T) {
	run := config()
	run.MaxOffPolicySteps = 1
	r := newRunner(t, run, DefaultConfig())
	for step := range int64(2) {
		feed(t, r, group(10+step, version(step), 1, 1, 1, 2)) // makes step s
	}
	mixed := group(0, version(2), 2, 2)
	mixed.Samples[1].PolicyStart = version(0)
	future := group(2, version(3), 2, 2)
	o := feed(t, r, mixed, group(1, version(0), 2, 2), future, group(3, nil, 2, 2), group(4, version(1), 2, 2))
	if got := fates(o); got != "0 stale; 1 stale; 2 errored; 3 packed 3; 4 packed 3; " {
		t.Error(got)
	}
}

func TestEnd(t *testing.T) {
	run := config()
	run.MaxSteps = 1
	r := newRunner(t, run, DefaultConfig())
	feed(t, r, group(0, nil, 1, 1, 1, 1), group(1, nil, 1, 1, 1, 1), without(2, 4, "filtered", "zero_advantage"))
	r.Step(t, undecodable(99, "3"))
	o := sorted(t, r.Emitted)
	if got := fates(o); got != "0 packed 1; 1 cancelled; 2 cancelled; 3 cancelled; " {
		t.Error(got)
	}
	if len(r.Unfinished()) != 0 {
		t.Error("something is unfinished after the last step")
	}
}

func TestUndecodable(t *testing.T) {
	r := newRunner(t, config(), DefaultConfig())
	feed(t, r, group(0, nil, 1, 1))
	for i, key := range []string{"1", "1", "0", "held-out/5", "no number", ""} {
		r.Step(t, undecodable(int64(100+i), key))
	}
	feed(t, r, group(1, nil, 1, 1), group(2, nil, 1, 1))
	if got := fates(sorted(t, r.Emitted)); got != "1 errored; 0 packed 1; 2 packed 1; " {
		t.Error(got)
	}
}

func TestZeroOutputGuard(t *testing.T) {
	cfg := DefaultConfig()
	cfg.ZeroOutputBatches = 2
	r := newRunner(t, config(), cfg)
	feed(t, r, without(0, 7, "filtered", "zero_advantage"), group(1, nil, 1), without(2, 3, "errored", ""))
	feed(t, r, without(3, 4, "filtered", "zero_advantage"))
	if len(r.Poison) != 0 {
		t.Fatalf("stopped after 7 rollouts: %v", r.Poison)
	}
	feed(t, r, without(4, 1, "filtered", "zero_advantage"))
	if len(r.Poison) != 1 || !errors.Is(r.Poison[0], pipeline.ErrFatal) {
		t.Fatalf("not stopped after 8 rollouts: %v", r.Poison)
	}
	if got := r.Poison[0].Error(); !strings.Contains(got, "errored 1, filter zero_advantage 2") || !strings.Contains(got, "the last 8 rollouts") {
		t.Error(got)
	}
	// A start after the cause is gone has the whole allowance again.
	r.Restart(t)
	if feed(t, r, without(5, 7, "filtered", "zero_advantage")); len(r.Poison) != 1 {
		t.Errorf("stopped again at once: %v", r.Poison[1])
	}
}

func TestConfig(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
	for _, spoil := range []func(*Config){
		func(c *Config) { c.Overlong = "keep" },
		func(c *Config) { c.ZeroOutputBatches = 0 },
		func(c *Config) { c.MaxWaves = 0 },
		func(c *Config) { c.FlopsLinear, c.FlopsQuadratic = 0, 0 },
	} {
		c := DefaultConfig()
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), "packer.") {
			t.Errorf("%+v: %v", c, err)
		}
	}
}
