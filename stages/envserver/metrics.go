package envserver

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/schemas"
)

// metrics are the figures of one server, beside those of its shells.
type metrics struct {
	all      []prometheus.Collector
	rollouts *prometheus.CounterVec // by env, result
	reruns   *prometheus.CounterVec // by env, why
	turns    *prometheus.HistogramVec
	seconds  *prometheus.HistogramVec // by env, part
	stuck    *prometheus.GaugeVec     // by env
	room     *prometheus.GaugeVec     // by env
}

// Why rollouts are run again.
const (
	rerunCrashed = "crashed" // their process ended without warning; counted by the next
	rerunMoved   = "moved"   // their partition went elsewhere; counted by the one that runs them to their end
	rerunStopped = "stopped" // a stop did not wait for them
)

func newMetrics(p *pool) *metrics {
	m := &metrics{
		rollouts: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prl_envserver_rollouts_total",
			Help: "Rollouts whose trace is acknowledged, by result: scored, truncated, or the type of the error."}, []string{"env", "result"}),
		reruns: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prl_envserver_reruns_total",
			Help: "Rollouts that are begun again, by why: crashed (their process ended without warning), moved (their partition went elsewhere), stopped (a stop did not wait for them)."}, []string{"env", "why"}),
		turns: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "prl_envserver_rollout_messages",
			Help: "Messages of a rollout.", Buckets: prometheus.ExponentialBuckets(1, 2, 10)}, []string{"env"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "prl_envserver_rollout_seconds",
			Help: "Time of a rollout by part: setup, generation, environment, scoring, teardown.", Buckets: prometheus.ExponentialBuckets(0.0001, 4, 12)}, []string{"env", "part"}),
	}
	m.stuck = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "prl_envserver_stuck_calls",
		Help: "Calls of an environment that should have returned and have not; from max_stuck on nothing of it is begun."}, []string{"env"})
	m.room = prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "prl_envserver_room",
		Help: "Rollouts of an environment that may run at once: by envserver.concurrency, the environment's own, and what it has room for."}, []string{"env"})
	gauge := func(name, help string, value func() int) prometheus.Collector {
		return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
			p.mu.Lock()
			defer p.mu.Unlock()
			return float64(value())
		})
	}
	m.all = []prometheus.Collector{m.rollouts, m.reruns, m.turns, m.seconds, m.stuck, m.room,
		gauge("prl_envserver_slots_used", "Rollouts that run or are about to.", func() int { return p.used }),
		gauge("prl_envserver_tasks_open", "Tasks that wait or run.", func() int { return len(p.jobs) }),
	}
	return m
}

// rerun counts the rollouts of a task that are begun again.
func (m *metrics) rerun(j *job, why string) {
	m.reruns.WithLabelValues(j.task.Env, why).Add(float64(len(indices(j.task))))
}

func (m *metrics) count(traces []*schemas.Trace) {
	for _, t := range traces {
		result := "scored"
		if t.Truncated {
			result = "truncated"
		}
		if len(t.Errors) > 0 {
			result = t.Errors[0].Type
		}
		m.rollouts.WithLabelValues(t.Env, result).Inc()
		m.turns.WithLabelValues(t.Env).Observe(float64(len(t.Nodes)))
		for part, ms := range map[string]float64{"setup": t.Timing.SetupMs, "generation": t.Timing.GenerationMs,
			"environment": t.Timing.EnvironmentMs, "scoring": t.Timing.ScoringMs, "teardown": t.Timing.TeardownMs} {
			m.seconds.WithLabelValues(t.Env, part).Observe(ms / 1000)
		}
	}
}

// Describe implements prometheus.Collector: a Server is registered like any collector.
func (s *Server) Describe(ch chan<- *prometheus.Desc) {
	for _, c := range s.metrics.all {
		c.Describe(ch)
	}
}

// Collect implements prometheus.Collector.
func (s *Server) Collect(ch chan<- prometheus.Metric) {
	for _, p := range s.players {
		s.metrics.stuck.WithLabelValues(p.info.Name).Set(float64(p.overdue.calls.Load()))
		s.metrics.room.WithLabelValues(p.info.Name).Set(float64(s.pool.concurrency(p.info.Name)))
	}
	for _, c := range s.metrics.all {
		c.Collect(ch)
	}
}
