package trainer

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
)

// stageMetrics is what Prometheus sees of the trainer; all figures of training are in the topic metrics.
type stageMetrics struct {
	steps, skipped, tokens, saved, workers prometheus.Counter
	seconds                                prometheus.Observer
	figures                                map[string]*prometheus.GaugeVec // of the newest step, by their names there
	published                              *prometheus.GaugeVec
}

// newStageMetrics registers the metrics prl_<name>_…; a nil reg keeps them to itself.
func newStageMetrics(reg prometheus.Registerer, name string) (*stageMetrics, error) {
	in := &pipeline.Instruments{Registry: reg}
	m := &stageMetrics{
		steps:   in.Counter("prl_"+name+"_steps_total", "Steps that were trained and published.").WithLabelValues(),
		skipped: in.Counter("prl_"+name+"_skipped_steps_total", "Steps without update, as the gradient was not finite.").WithLabelValues(),
		tokens:  in.Counter("prl_"+name+"_tokens_total", "Tokens of the micro-batches that were trained.").WithLabelValues(),
		saved:   in.Counter("prl_"+name+"_save_seconds_total", "Time in which weights and checkpoints were stored, beside training.").WithLabelValues(),
		workers: in.Counter("prl_"+name+"_worker_starts_total", "Workers of PyTorch that were started; one that dies is replaced.").WithLabelValues(),
		seconds: in.Histogram("prl_"+name+"_step_seconds", "From a step's last micro-batch to its published version.",
			prometheus.ExponentialBuckets(0.01, 2, 15)).WithLabelValues(),
		published: in.Gauge("prl_"+name+"_published_timestamp_seconds", "When this process has published its newest version, or resumed at it, in seconds since 1970."),
		figures: map[string]*prometheus.GaugeVec{
			figureMFU:    in.Gauge("prl_"+name+"_mfu_ratio", "Share of the operations per second that the devices have at best, in the newest step; not there where that is not known."),
			figureMemory: in.Gauge("prl_"+name+"_memory_bytes", "Most memory in use in the newest step, of the device."),
			"loss":       in.Gauge("prl_"+name+"_loss", "Loss of the newest step: the sum of its components."),
			"entropy":    in.Gauge("prl_"+name+"_entropy_nats", "Mean entropy of the policy at the sampled tokens of the newest step."),
			"kl":         in.Gauge("prl_"+name+"_kl_nats", "Divergence of the policy that is trained from the one that sampled, per token of the newest step."),
			"ratio":      in.Gauge("prl_"+name+"_importance_ratio", "Mean ratio of the probabilities of the sampled tokens, of the policy that is trained to the one that sampled, in the newest step."),
			"masked":     in.Gauge("prl_"+name+"_masked_ratio", "Share of the tokens of the newest step that the loss leaves out, as their ratio is out of bounds."),
			"grad_norm":  in.Gauge("prl_"+name+"_gradient_norm", "Norm of the gradient of the newest step, before clipping."),
			"lr":         in.Gauge("prl_"+name+"_learning_rate", "Learning rate of the newest step."),
		},
	}
	return m, in.Err()
}

// counted counts the workers that are started for learners.
func (m *stageMetrics) counted(cfg Config, start func(context.Context, string) (Learner, error)) func(context.Context, string) (Learner, error) {
	if cfg.Learner != LearnerTorch {
		return start
	}
	return func(ctx context.Context, base string) (Learner, error) {
		m.workers.Inc()
		return start(ctx, base)
	}
}

// made counts a version of this process that is published.
func (m *stageMetrics) made(v *made) {
	m.steps.Inc()
	m.seconds.Observe(time.Since(v.began).Seconds())
	m.tokens.Add(float64(v.tokens))
	m.saved.Add(v.figures[figureSave])
	m.published.WithLabelValues().SetToCurrentTime()
	for name, g := range m.figures {
		g.Reset() // what a step does not have is not told
		for _, figures := range []map[string]float64{v.Metrics, v.figures} {
			if value, ok := figures[name]; ok {
				g.WithLabelValues().Set(value)
			}
		}
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
