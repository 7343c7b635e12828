package stages

import (
	"fmt"
	"io"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"

	"github.com/prl-project/prl/stages/internal/progress"
)

// A figure is a metric in the line that a stage shows on a terminal.
type figure struct {
	metric string
	rate   bool   // a counter: how fast it grows
	says   string // with a verb for the number
}

// shellFigures are those of every stage that has a shell, ownFigures what a stage says besides.
var (
	shellFigures = []figure{
		{"prl_stage_records_total", true, "%s records/s"}, {"prl_stage_lag_records", false, "%s behind"}, {"prl_stage_unfinished_records", false, "%s at work"},
	}
	ownFigures = map[string][]figure{
		"emitter":   {{"prl_emitter_rollouts_open", false, "%s rollouts open"}},
		"envserver": {{"prl_envserver_rollouts_running", false, "%s rollouts run"}},
		"packer":    {{"prl_packer_step", false, "step %s packed"}},
		"trainer":   {{"prl_stage_policy_version", false, "version %s"}, {"prl_trainer_tokens_total", true, "%s tokens/s"}},
		"inference": {{"prl_stage_policy_version", false, "version %s"}, {"prl_inference_requests_running", false, "%s requests"}, {"prl_inference_tokens_total", true, "%s tokens/s"}},
		"eval":      {{"prl_eval_tasks_open", false, "%s tasks open"}},
		"sink":      {{"prl_sink_written_records_total", true, "%s rows/s into files"}, {"prl_sink_buffered_bytes", false, "%s bytes in memory"}},
		"cleanup":   {{"prl_cleanup_deleted_records_total", false, "%s records deleted"}, {"prl_cleanup_deleted_blobs_total", false, "%s blobs deleted"}},
	}
)

// rateOver is the time over which the line says how fast something goes.
const rateOver = 10 * time.Second

// ShowStage shows in one line in place what a stage of this process does, until stop is called. It does nothing where out is no
// terminal: there the log is what one reads.
func (a *App) ShowStage(s Stage, out io.Writer) (stop func()) {
	if _, ok := out.(*progress.Terminal); !ok {
		return func() {}
	}
	l := statusLine{stage: s.Name, figures: append(shellFigures[:len(shellFigures):len(shellFigures)], ownFigures[s.Name]...)}
	return progress.Doing(out, func(since time.Duration) string {
		if now := time.Now(); now.Sub(l.at) >= time.Second {
			found, err := a.Registry.Gather()
			if err != nil {
				return ""
			}
			l.look(found, now)
		}
		return l.text(since)
	})
}

// statusLine is what a stage says of itself.
type statusLine struct {
	stage   string
	figures []figure
	at      time.Time
	said    string
	looks   []look // of the last rateOver, oldest first
}

// look is the metrics at one time.
type look struct {
	at     time.Time
	values map[string]float64
}

func (l *statusLine) look(found []*dto.MetricFamily, now time.Time) {
	values, parts, ready := map[string]float64{}, 0, 0.0
	for _, f := range found {
		for _, m := range f.GetMetric() {
			if ofStage(m, l.stage) {
				values[f.GetName()] += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
			if f.GetName() == readyMetric && partOf(m, l.stage) {
				parts, ready = parts+1, ready+m.GetGauge().GetValue()
			}
		}
	}
	l.at = now
	l.looks = append(l.looks, look{now, values})
	for len(l.looks) > 1 && now.Sub(l.looks[1].at) >= rateOver {
		l.looks = l.looks[1:]
	}
	says := []string{l.stage, "starts"}
	if parts > 0 && ready == float64(parts) {
		says[1] = "works"
	}
	for _, f := range l.figures {
		v, known := values[f.metric]
		if !known {
			continue
		}
		if first := l.looks[0]; f.rate {
			seconds := now.Sub(first.at).Seconds()
			if seconds == 0 {
				continue
			}
			v = (v - first.values[f.metric]) / seconds
		}
		says = append(says, fmt.Sprintf(f.says, progress.Count(v)))
	}
	l.said = strings.Join(says, " · ")
}

func (l *statusLine) text(since time.Duration) string { return l.said + " · for " + since.String() }

// readyMetric is 1 where a stage, or a part of it, does its work.
const readyMetric = "prl_stage_ready"

// partOf reports whether a metric is of a stage, or of what it does for one environment.
func partOf(m *dto.Metric, stage string) bool {
	for _, label := range m.GetLabel() {
		if label.GetName() == "stage" {
			part, _, _ := strings.Cut(label.GetValue(), ".")
			return part == stage
		}
	}
	return false
}

// ofStage reports whether a metric is of a stage, or of none in particular.
func ofStage(m *dto.Metric, stage string) bool {
	for _, label := range m.GetLabel() {
		if label.GetName() == "stage" {
			return label.GetValue() == stage
		}
	}
	return true
}
