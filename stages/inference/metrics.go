package inference

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
)

type metrics struct {
	codes    pipeline.Words         // servers say them
	requests *prometheus.CounterVec // by result: a finish reason, or an error's code
	tokens   prometheus.Counter
	prompt   prometheus.Counter
	running  prometheus.Gauge
	held     prometheus.Gauge
	seconds  prometheus.Histogram
	version  prometheus.Gauge
	arrival  *arrival
}

// newMetrics registers the metrics; a nil registry keeps them to itself.
func newMetrics(reg prometheus.Registerer) (*metrics, error) {
	m := &metrics{
		held:     prometheus.NewGauge(prometheus.GaugeOpts{Name: "prl_inference_held_requests", Help: "Requests that wait for their policy version to be published or loaded."}),
		seconds:  prometheus.NewHistogram(prometheus.HistogramOpts{Name: "prl_inference_request_seconds", Help: "Time of a completion from when its policy version was there to its end, or its failure.", Buckets: prometheus.ExponentialBuckets(0.01, 2, 16)}),
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prl_inference_requests_total", Help: "Requests by result: stop, length, probed, cancelled or the code of the error."}, []string{"result"}),
		tokens:   prometheus.NewCounter(prometheus.CounterOpts{Name: "prl_inference_tokens_total", Help: "Tokens sampled in whole completions."}),
		prompt:   prometheus.NewCounter(prometheus.CounterOpts{Name: "prl_inference_prompt_tokens_total", Help: "Tokens of the prompts of whole completions, and of probes."}),
		running:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "prl_inference_requests_running", Help: "Requests held, waiting or running."}),
		version:  prometheus.NewGauge(prometheus.GaugeOpts{Name: "prl_inference_policy_version", Help: "Newest policy version that is served."}),
		arrival:  newArrival(),
	}
	if reg == nil {
		return m, nil
	}
	return m, errors.Join(reg.Register(m.requests), reg.Register(m.tokens), reg.Register(m.prompt), reg.Register(m.running), reg.Register(m.held), reg.Register(m.seconds), reg.Register(m.version), reg.Register(m.arrival.seconds))
}

// ended counts a request.
func (m *metrics) ended(r Request, c Completion, err error) {
	result := m.codes.Of(c.FinishReason)
	var e *Error
	switch {
	case err == nil:
		m.tokens.Add(float64(len(c.Tokens)))
		m.prompt.Add(float64(len(r.Tokens)))
		for _, v := range c.Versions {
			m.arrival.sampled(v.Version)
		}
	case errors.As(err, &e):
		result = m.codes.Of(e.Code)
	default:
		result = "cancelled"
	}
	m.requests.WithLabelValues(result).Inc()
}

// probed counts a probe.
func (m *metrics) probed(p Probe, err error) {
	var e *Error
	switch {
	case err == nil:
		m.prompt.Add(float64(len(p.Tokens)))
		m.requests.WithLabelValues("probed").Inc()
	case errors.As(err, &e):
		m.requests.WithLabelValues(m.codes.Of(e.Code)).Inc()
	default:
		m.requests.WithLabelValues("cancelled").Inc()
	}
}
