package packer

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// TestMeter counts what a packer has committed, hostile names too.
func TestMeter(t *testing.T) {
	reg := prometheus.NewRegistry()
	meter, err := NewMeter(reg, []string{"catch"})
	if err != nil {
		t.Fatal(err)
	}
	families := func() map[string]*dto.MetricFamily {
		t.Helper()
		list, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		by := map[string]*dto.MetricFamily{}
		for _, f := range list {
			by[f.GetName()] = f
		}
		return by
	}
	if n := len(families()["prl_packer_groups_total"].GetMetric()); n != len(groupFates)-1 {
		t.Errorf("%d fates are there from the start", n)
	}
	r := newRunner(t, config(), DefaultConfig())
	o := feed(t, r, group(1, version(0), 4, 6), without(2, 2, "filtered", "zero_advantage"), group(0, version(0), 10, 3))
	for _, v := range o.outcomes {
		meter.Committed(pipeline.Emission{Topic: pipeline.TopicOutcomes, Value: v})
	}
	for _, v := range o.metrics {
		meter.Committed(pipeline.Emission{Topic: pipeline.TopicMetrics, Value: v})
	}
	step, start := int64(5), int64(2)
	old := &schemas.GroupOutcome{Env: "catch", Fate: schemas.FatePacked, Step: &step, Rollouts: []schemas.RolloutFate{{Fate: schemas.FatePacked, PolicyStart: &start}}}
	meter.Committed(pipeline.Emission{Topic: pipeline.TopicOutcomes, Value: old})
	hostile := &schemas.GroupOutcome{Env: "\xff\xfe", Fate: "errored\xff", Filter: "\xff", Rollouts: []schemas.RolloutFate{{Fate: "anything at all"}}}
	meter.Committed(pipeline.Emission{Topic: pipeline.TopicOutcomes, Value: hostile})
	core, err := New(config(), DefaultConfig())(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	core.(*Core).state.Step = 5
	meter.Read(core)
	by := families()
	sum := func(name string) (sum float64) {
		for _, m := range by[name].GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
		}
		return sum
	}
	steps := by["prl_packer_off_policy_steps"].GetMetric()[0].GetHistogram()
	if sum("prl_packer_groups_total") != 5 || sum("prl_packer_rollouts_total") != 8 || steps.GetSampleCount() != 5 || steps.GetSampleSum() != 2 {
		t.Errorf("%v groups, %v rollouts, off-policy steps %v", sum("prl_packer_groups_total"), sum("prl_packer_rollouts_total"), steps)
	}
	if sum("prl_packer_tokens_total") != 23 || sum("prl_packer_step") != 5 || sum("prl_packer_reward") != 0.5 {
		t.Errorf("%v tokens, step %v, reward %v", sum("prl_packer_tokens_total"), sum("prl_packer_step"), sum("prl_packer_reward"))
	}
	for _, m := range by["prl_packer_rollouts_total"].GetMetric() {
		for _, l := range m.GetLabel() {
			if l.GetValue() == "anything at all" {
				t.Error("a fate that nobody knows makes a series")
			}
		}
	}
	meter.Read(nil)
	if by := families(); by["prl_packer_step"] != nil || by["prl_packer_reward"] != nil {
		t.Error("figures of a core that is another instance's are left")
	}
}
