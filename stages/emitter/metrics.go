package emitter

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
)

// meter is what Prometheus sees of the emitter.
type meter struct {
	tasks                  *prometheus.CounterVec // by env
	open, held, up, permit *prometheus.GaugeVec   // by env; of the active instance alone
}

// NewMeter registers the metrics of the emitter.
func NewMeter(reg prometheus.Registerer) (pipeline.Meter, error) {
	in := &pipeline.Instruments{Registry: reg}
	m := &meter{
		tasks:  in.Counter("prl_emitter_tasks_total", "Tasks of training that were written, those asked for again included.", "env"),
		open:   in.Gauge("prl_emitter_tasks_open", "Rollouts of tasks that no environment server has finished: they wait or run. Of training, and those of evals that a server has read. While no server is heard of: all of groups without an outcome.", "env"),
		held:   in.Gauge("prl_emitter_rollouts_open", "Rollouts of groups without an outcome, those that wait to be packed included: the permits that are used.", "env"),
		up:     in.Gauge("prl_emitter_env_up", "1 while a server of the environment has been heard of within emitter.env_lost, else 0.", "env"),
		permit: in.Gauge("prl_emitter_permits_rollouts", "Rollouts that may be open at once."),
	}
	return m, in.Err()
}

// Committed implements pipeline.Meter.
func (m *meter) Committed(e pipeline.Emission) {
	if env, ok := pipeline.EnvOfTasks(e.Topic); ok {
		m.tasks.WithLabelValues(env).Inc()
	}
}

// Read implements pipeline.Meter.
func (m *meter) Read(core pipeline.Core) {
	c, ok := core.(*Core)
	if !ok {
		for _, g := range []*prometheus.GaugeVec{m.open, m.held, m.up, m.permit} {
			g.Reset()
		}
		return
	}
	m.permit.WithLabelValues().Set(float64(c.permits))
	for _, env := range c.envs {
		up := 0.0
		if c.alive(env) {
			up = 1
		}
		m.up.WithLabelValues(env.Name).Set(up)
		m.held.WithLabelValues(env.Name).Set(float64(env.held))
		m.open.WithLabelValues(env.Name).Set(float64(c.unplayed(env)))
	}
}

// alive reports whether a server of an environment has been heard of lately.
func (c *Core) alive(env *environment) bool {
	return !env.heard.IsZero() && c.ticked.Sub(env.heard) <= time.Duration(c.cfg.EnvLost)
}

// unplayed is how many rollouts of an environment wait or run at its servers; while none is heard of, how many may.
func (c *Core) unplayed(env *environment) int {
	if !c.alive(env) {
		return env.held
	}
	if env.Info != nil && env.Info.GroupScoring {
		return env.Queues.Load() * env.cfg.GroupSize
	}
	return env.Queues.Load()
}
