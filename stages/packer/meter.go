package packer

import (
	"slices"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// meter is what Prometheus sees of the packer: the fates it decides, and the figures of a step (metrics.go).
type meter struct {
	envs      pipeline.Words // records say them, and the two below
	fates     pipeline.Words
	filters   pipeline.Words
	groups    *prometheus.CounterVec   // by env, fate, filter
	rollouts  *prometheus.CounterVec   // by env, fate
	offPolicy *prometheus.HistogramVec // by env
	tokens    *prometheus.CounterVec
	reward    *prometheus.GaugeVec // by env; like those below of the active instance alone
	padding   *prometheus.GaugeVec
	step      *prometheus.GaugeVec
}

// groupFates are those that the packer gives.
var groupFates = []string{schemas.FatePacked, schemas.FateFiltered, schemas.FateStale, schemas.FateOverlong, schemas.FateErrored, schemas.FateTimedOut, schemas.FateCancelled}

// NewMeter registers the metrics of the packer. Of the environments named, every fate is there from the start.
func NewMeter(reg prometheus.Registerer, envs []string) (pipeline.Meter, error) {
	in := &pipeline.Instruments{Registry: reg}
	m := &meter{
		groups:    in.Counter("prl_packer_groups_total", "Groups of training by fate (packed, filtered, stale, overlong, errored, timed_out, cancelled), and the filter that took them.", "env", "fate", "filter"),
		rollouts:  in.Counter("prl_packer_rollouts_total", "Rollouts of training by fate.", "env", "fate"),
		offPolicy: in.Histogram("prl_packer_off_policy_steps", "Off-policy steps of packed rollouts: how many versions the policy has moved on since their first token.", []float64{0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64}, "env"),
		tokens:    in.Counter("prl_packer_tokens_total", "Tokens that were packed."),
		reward:    in.Gauge("prl_packer_reward", "Mean reward of the rollouts that were decided between the last two steps, whatever became of them.", "env"),
		padding:   in.Gauge("prl_packer_padding_ratio", "Share of the newest step's micro-batches that holds no token."),
		step:      in.Gauge("prl_packer_step", "Newest step that is packed."),
	}
	for _, env := range envs {
		m.envs.Of(env)
		for _, fate := range groupFates {
			m.rollouts.WithLabelValues(env, fate)
			if fate != schemas.FateFiltered { // which names its filter
				m.groups.WithLabelValues(env, fate, "")
			}
		}
	}
	return m, in.Err()
}

// Committed implements pipeline.Meter.
func (m *meter) Committed(e pipeline.Emission) {
	switch v := e.Value.(type) {
	case *schemas.GroupOutcome:
		m.outcome(v)
	case *schemas.MetricPoint:
		switch v.Name {
		case "reward":
			m.reward.WithLabelValues(m.envs.Of(v.Labels["env"])).Set(v.Value)
		case "tokens":
			m.tokens.WithLabelValues().Add(v.Value)
		case "padding":
			m.padding.WithLabelValues().Set(v.Value)
		}
	}
}

func (m *meter) outcome(o *schemas.GroupOutcome) {
	env := m.envs.Of(o.Env)
	m.groups.WithLabelValues(env, m.fates.Of(o.Fate), m.filters.Of(o.Filter)).Inc()
	for _, r := range o.Rollouts {
		fate := r.Fate
		if !slices.Contains(groupFates, fate) {
			fate = m.fates.Of(o.Fate)
		}
		m.rollouts.WithLabelValues(env, fate).Inc()
		if fate == schemas.FatePacked && o.Step != nil && r.PolicyStart != nil {
			m.offPolicy.WithLabelValues(env).Observe(float64(*o.Step - 1 - *r.PolicyStart))
		}
	}
}

// Read implements pipeline.Meter.
func (m *meter) Read(core pipeline.Core) {
	c, ok := core.(*Core)
	if !ok {
		for _, g := range []*prometheus.GaugeVec{m.reward, m.padding, m.step} {
			g.Reset()
		}
		return
	}
	m.step.WithLabelValues().Set(float64(c.state.Step))
}
