package emitter

import (
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// told are the gauges that a meter tells of an environment.
func told(t *testing.T, reg *prometheus.Registry, env string) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "env" && l.GetValue() == env {
					all[f.GetName()] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
				}
			}
		}
	}
	return all
}

// TestTasksOpen follows what environment servers are scaled by: what no server has finished while they are heard of, whatever
// waits to be packed; all that is open when they are not, also after a restart, which forgets what was written; and nothing of a
// core that is another instance's.
func TestTasksOpen(t *testing.T) {
	reg := prometheus.NewRegistry()
	meter, err := NewMeter(reg)
	if err != nil {
		t.Fatal(err)
	}
	w := ready(t, testRun(), DefaultConfig(), testEnvs())
	var refs []pipeline.Ref
	for i, e := range w.tick(second) {
		meter.Committed(e)
		refs = append(refs, pipeline.Ref{Topic: e.Topic, Offset: int64(i)})
	}
	w.core().Produced(refs)
	held := float64(w.core().envs[0].held)
	meter.Read(w.core())
	got := told(t, reg, "catch")
	if held == 0 || got["prl_emitter_tasks_open"] != held || got["prl_emitter_rollouts_open"] != held || got["prl_emitter_env_up"] != 1 || got["prl_emitter_tasks_total"] != held {
		t.Fatalf("%v rollouts are emitted, and told is %v", held, got)
	}
	end := int64(len(refs)) // its servers have read and finished everything
	w.table(&schemas.StageState{Stage: "envserver", Topic: "tasks.catch", Instance: "s", Concurrency: 4, LowOffset: end, NextOffset: end})
	meter.Read(w.core())
	if got := told(t, reg, "catch"); got["prl_emitter_rollouts_open"] != held || got["prl_emitter_tasks_open"] != 0 {
		t.Errorf("all are finished and wait to be packed: %v", got)
	}
	w.tick(second)
	w.tick(2 * 60 * second)
	meter.Read(w.core())
	if got := told(t, reg, "catch"); got["prl_emitter_env_up"] != 0 || got["prl_emitter_tasks_open"] != float64(w.core().envs[0].held) {
		t.Errorf("no server is heard of: %v", got)
	}
	meter.Read(nil)
	if got := told(t, reg, "catch"); len(got) != 1 {
		t.Errorf("it is another instance's: %v", got)
	}
}
