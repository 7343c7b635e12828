package trainer

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// stageMetrics is what Prometheus sees of the trainer; the figures of training itself are in the topic metrics.
type stageMetrics struct {
	version prometheus.Gauge
	skipped prometheus.Counter
	seconds prometheus.Histogram
	waited  prometheus.Counter
	saved   prometheus.Counter
	figures map[string]prometheus.Gauge
}

// newStageMetrics registers the metrics; a nil reg keeps them to itself.
func newStageMetrics(reg prometheus.Registerer) (*stageMetrics, error) {
	gauge := func(name, help string) prometheus.Gauge {
		return prometheus.NewGauge(prometheus.GaugeOpts{Name: "prl_trainer_" + name, Help: help})
	}
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "prl_trainer_" + name, Help: help})
	}
	m := &stageMetrics{
		version: gauge("version", "The newest version this process has published."),
		skipped: counter("skipped_steps_total", "Steps without update, as the gradient was not finite."),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{Name: "prl_trainer_step_seconds", Help: "From a step's last micro-batch to its published version.", Buckets: prometheus.ExponentialBuckets(0.01, 2, 15)}),
		waited:  counter("wait_seconds_total", "Time in which no batch was there to be trained."),
		saved:   counter("save_seconds_total", "Time in which weights and checkpoints were stored, beside training."),
		figures: map[string]prometheus.Gauge{
			figureSpeed:  gauge("tokens_per_second", "Tokens of the last step's micro-batches per second, waiting included."),
			figureMFU:    gauge("mfu", "Share of the operations per second that the devices have at best; 0 where that is not known."),
			figureMemory: gauge("memory_bytes", "Most memory in use in the last step, of the device."),
		},
	}
	if reg == nil {
		return m, nil
	}
	all := []prometheus.Collector{m.version, m.skipped, m.seconds, m.waited, m.saved}
	for _, g := range m.figures {
		all = append(all, g)
	}
	for _, c := range all {
		if err := reg.Register(c); err != nil {
			return nil, fmt.Errorf("register the trainer's metrics: %w", err)
		}
	}
	return m, nil
}

func (m *stageMetrics) published(v *made) {
	m.version.Set(float64(v.Version))
	m.seconds.Observe(time.Since(v.began).Seconds())
	m.saved.Add(v.figures[figureSave])
	for name, g := range m.figures {
		g.Set(v.figures[name])
	}
	if v.Skipped {
		m.skipped.Inc()
	}
}

// Names of the figures of a step's work (Work says what they are).
const (
	figureSpeed  = "tokens_per_second"
	figureWait   = "wait_share"
	figureMFU    = "mfu"
	figureTrain  = "train_seconds"
	figureSave   = "save_seconds"
	figureMemory = "memory_bytes"
)

// figuresOf are the figures of a step that waited for its batch, trained, and ended an interval after the step before.
func figuresOf(w Work, waited, trained, interval time.Duration) map[string]float64 {
	f := map[string]float64{figureTrain: trained.Seconds()}
	if s := interval.Seconds(); s > 0 {
		f[figureSpeed], f[figureWait] = float64(w.Tokens)/s, waited.Seconds()/s
	}
	if peak := w.PeakFLOPS * trained.Seconds(); peak > 0 && w.FLOPs > 0 {
		f[figureMFU] = w.FLOPs / peak
	}
	if w.Memory > 0 {
		f[figureMemory] = float64(w.Memory)
	}
	return f
}
