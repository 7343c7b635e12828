package stages

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// TestStatusLine adds up what is of the stage, tells how fast counters grow, and knows when the stage works.
func TestStatusLine(t *testing.T) {
	reg := prometheus.NewRegistry()
	records := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prl_stage_records_total"}, []string{"stage", "topic"})
	lag := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "prl_stage_lag_records"}, []string{"stage", "partition"})
	ready := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: readyMetric}, []string{"stage"})
	running := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "prl_envserver_rollouts_running"}, []string{"env"})
	reg.MustRegister(records, lag, ready, running)
	stage, err := Find("envserver")
	if err != nil {
		t.Fatal(err)
	}
	l := statusLine{stage: stage.Name, figures: append(shellFigures[:len(shellFigures):len(shellFigures)], ownFigures[stage.Name]...)}
	now := time.Unix(1000, 0)
	says := func(want string) {
		t.Helper()
		found, err := reg.Gather()
		if err != nil {
			t.Fatal(err)
		}
		if l.look(found, now); l.text(3*time.Second) != want {
			t.Errorf("%q, want %q", l.text(3*time.Second), want)
		}
	}
	says("envserver · starts · for 3s")
	ready.WithLabelValues("envserver.catch").Set(1)
	ready.WithLabelValues("envserver.wordle").Set(0)
	ready.WithLabelValues("scorer").Set(1)
	records.WithLabelValues("envserver", "tasks.catch").Add(100)
	records.WithLabelValues("scorer", "traces").Add(5000)
	lag.WithLabelValues("envserver", "0").Set(3)
	lag.WithLabelValues("envserver", "1").Set(4)
	running.WithLabelValues("catch").Set(2)
	now = now.Add(5 * time.Second)
	says("envserver · starts · 20 records/s · 7 behind · 2 rollouts run · for 3s")
	ready.WithLabelValues("envserver.wordle").Set(1)
	for range 3 { // what is longer ago does not count
		now = now.Add(5 * time.Second)
		records.WithLabelValues("envserver", "tasks.wordle").Add(50)
		lag.WithLabelValues("envserver", "0").Set(1300)
		says(map[bool]string{true: "envserver · works · 15 records/s · 1.3k behind · 2 rollouts run · for 3s", false: "envserver · works · 10 records/s · 1.3k behind · 2 rollouts run · for 3s"}[now.Unix() == 1010])
	}
}
