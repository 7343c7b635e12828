package envserver

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// metrics are the figures of one server, beside those of its shells.
type metrics struct {
	types    pipeline.Words         // of errors: environments have their own
	rollouts *prometheus.CounterVec // by env, result
	reruns   *prometheus.CounterVec // by env, why
	turns    *prometheus.HistogramVec
	seconds  *prometheus.HistogramVec // by env, part
}

// Why rollouts are run again.
const (
	rerunCrashed = "crashed" // their process ended without warning; counted by the next
	rerunMoved   = "moved"   // their partition went elsewhere; counted by the one that runs them to their end
	rerunStopped = "stopped" // a stop did not wait for them
)

func newMetrics(in *pipeline.Instruments) *metrics {
	return &metrics{
		rollouts: in.Counter("prl_envserver_rollouts_total", "Rollouts whose trace is acknowledged, by result: scored, truncated, or the type of the error.", "env", "result"),
		reruns: in.Counter("prl_envserver_reruns_total",
			"Rollouts that are begun again, by why: crashed (their process ended without warning), moved (their partition went elsewhere), stopped (a stop did not wait for them).", "env", "why"),
		turns: in.Histogram("prl_envserver_rollout_messages", "Messages of a rollout.", prometheus.ExponentialBuckets(1, 2, 10), "env"),
		seconds: in.Histogram("prl_envserver_rollout_seconds", "Time of a rollout by part: setup, generation, environment, scoring, teardown.",
			prometheus.ExponentialBuckets(0.0001, 4, 12), "env", "part"),
	}
}

// gauges are those of a server whose environments stand.
func (s *Server) gauges(in *pipeline.Instruments) {
	byEnv := func(name, help string, value func(p *player) int) {
		in.Register(pipeline.NewGauges(name, help, []string{"env"}, func(set func(float64, ...string)) {
			for _, p := range s.players {
				set(float64(value(p)), p.info.Name)
			}
		}))
	}
	inAll := func(name, help string, value func() int) {
		in.Register(pipeline.NewGauges(name, help, nil, func(set func(float64, ...string)) {
			s.pool.mu.Lock()
			n := value()
			s.pool.mu.Unlock()
			set(float64(n))
		}))
	}
	byEnv("prl_envserver_stuck_calls", "Calls of an environment that should have returned and have not; from max_stuck on nothing of it is begun.",
		func(p *player) int { return int(p.overdue.calls.Load()) })
	byEnv("prl_envserver_rollouts_room", "Rollouts of an environment that may run at once: by envserver.concurrency, the environment's own, and what it has room for.",
		func(p *player) int { return s.pool.concurrency(p.info.Name) })
	inAll("prl_envserver_rollouts_running", "Rollouts that run or are about to.", func() int { return s.pool.party.Held() })
	inAll("prl_envserver_tasks_open", "Tasks that wait or run.", func() int { return len(s.pool.jobs) })
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
			result = m.types.Of(t.Errors[0].Type)
		}
		m.rollouts.WithLabelValues(t.Env, result).Inc()
		m.turns.WithLabelValues(t.Env).Observe(float64(len(t.Nodes)))
		for part, ms := range map[string]float64{"setup": t.Timing.SetupMs, "generation": t.Timing.GenerationMs,
			"environment": t.Timing.EnvironmentMs, "scoring": t.Timing.ScoringMs, "teardown": t.Timing.TeardownMs} {
			m.seconds.WithLabelValues(t.Env, part).Observe(ms / 1000)
		}
	}
}
