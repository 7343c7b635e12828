package eval

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// meter is what Prometheus sees of the evals.
type meter struct {
	results            *prometheus.CounterVec // by eval
	avg, pass, version *prometheus.GaugeVec   // by eval, env
	open               *prometheus.GaugeVec   // by env; of the active instance alone
}

// NewMeter registers the metrics of the eval stage.
func NewMeter(reg prometheus.Registerer) (pipeline.Meter, error) {
	in := &pipeline.Instruments{Registry: reg}
	m := &meter{
		results: in.Counter("prl_eval_results_total", "Evals of a policy version that were finished.", "eval"),
		avg:     in.Gauge("prl_eval_avg_at_k", "avg@k of the newest result since this process began: the mean reward over the tasks.", "eval", "env"),
		pass:    in.Gauge("prl_eval_pass_at_k_ratio", "pass@k of the newest result since this process began.", "eval", "env"),
		version: in.Gauge("prl_eval_policy_version", "Policy version of the newest result since this process began.", "eval", "env"),
		open:    in.Gauge("prl_eval_tasks_open", "Tasks of an environment that no server has finished, as the eval stage knows it: of evals, and those of training that a server has read.", "env"),
	}
	return m, in.Err()
}

// Committed implements pipeline.Meter.
func (m *meter) Committed(e pipeline.Emission) {
	r, ok := e.Value.(*schemas.EvalResult)
	if !ok {
		return
	}
	m.results.WithLabelValues(r.Eval).Inc()
	m.version.WithLabelValues(r.Eval, r.Env).Set(float64(r.Version))
	if !r.AvgMissing {
		m.avg.WithLabelValues(r.Eval, r.Env).Set(r.AvgAtK)
	}
	if !r.PassMissing {
		m.pass.WithLabelValues(r.Eval, r.Env).Set(r.PassAtK)
	}
}

// Read implements pipeline.Meter.
func (m *meter) Read(core pipeline.Core) {
	c, ok := core.(*Core)
	if !ok {
		m.open.Reset()
		return
	}
	for _, env := range c.tables {
		m.open.WithLabelValues(env.Name).Set(float64(env.Queues.Load()))
	}
}
