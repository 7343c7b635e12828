package trainer

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/schemas"
)

// stageMetrics is what Prometheus sees of the trainer; the figures of training itself are in the topic metrics.
type stageMetrics struct {
	version prometheus.Gauge
	skipped prometheus.Counter
	seconds prometheus.Histogram
}

// newStageMetrics registers the metrics; a nil reg keeps them to itself.
func newStageMetrics(reg prometheus.Registerer) (*stageMetrics, error) {
	m := &stageMetrics{
		version: prometheus.NewGauge(prometheus.GaugeOpts{Name: "prl_trainer_version", Help: "The newest version this process has published."}),
		skipped: prometheus.NewCounter(prometheus.CounterOpts{Name: "prl_trainer_skipped_steps_total", Help: "Steps without update, as the gradient was not finite."}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "prl_trainer_step_seconds", Help: "From a step's last micro-batch to its published version.", Buckets: prometheus.ExponentialBuckets(0.01, 2, 15)}),
	}
	if reg == nil {
		return m, nil
	}
	for _, c := range []prometheus.Collector{m.version, m.skipped, m.seconds} {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the trainer's metrics: %w", err)
		}
	}
	return m, nil
}

func (m *stageMetrics) trained(v *schemas.PolicyVersion, took time.Duration) {
	m.version.Set(float64(v.Version))
	m.seconds.Observe(took.Seconds())
	if v.Skipped {
		m.skipped.Inc()
	}
}
