package scorer

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// meter is what Prometheus sees of the scorers of a process.
type meter struct {
	envs    pipeline.Words         // records say them
	groups  *prometheus.CounterVec // by env, result, filter
	refills *prometheus.CounterVec
}

// NewMeter registers the metrics of the scorer.
func NewMeter(reg prometheus.Registerer) (pipeline.Meter, error) {
	in := &pipeline.Instruments{Registry: reg}
	m := &meter{
		groups:  in.Counter("prl_scorer_groups_total", "Groups that were scored, by result: scored (they have samples), or why not: filtered (and by which filter), stale, errored, timed_out, cancelled.", "env", "result", "filter"),
		refills: in.Counter("prl_scorer_refills_total", "Failed rollouts that were asked for again."),
	}
	return m, in.Err()
}

// Committed implements pipeline.Meter.
func (m *meter) Committed(e pipeline.Emission) {
	switch v := e.Value.(type) {
	case *schemas.SampleGroup:
		result := v.Reason
		if result == "" {
			result = "scored"
		}
		m.groups.WithLabelValues(m.envs.Of(v.Env), result, v.Filter).Inc()
	case *schemas.Request:
		if v.Kind == schemas.RequestRefill {
			m.refills.WithLabelValues().Inc()
		}
	}
}

// Read implements pipeline.Meter: there is nothing to read.
func (m *meter) Read(pipeline.Core) {}
