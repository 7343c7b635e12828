package remote

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

type metrics struct {
	ready   prometheus.Gauge
	retried prometheus.Counter
	swapped prometheus.Histogram
}

// newMetrics registers the metrics; a nil registry keeps them to itself.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		ready:   prometheus.NewGauge(prometheus.GaugeOpts{Name: "prl_inference_servers_ready", Help: "Servers beside the stage that hold the version they should."}),
		retried: prometheus.NewCounter(prometheus.CounterOpts{Name: "prl_inference_requests_retried_total", Help: "Requests that went to another server."}),
		swapped: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "prl_inference_swap_seconds", Help: "Time in which a server got no requests while it was given a policy version.", Buckets: prometheus.ExponentialBuckets(0.05, 2, 14)}),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.ready), reg.Register(m.retried), reg.Register(m.swapped))
}
