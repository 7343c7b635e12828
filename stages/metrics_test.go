package stages

import (
	"cmp"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/inference"
)

const prometheusREADME = "../deploy/prometheus/README.md"

// TestMetricsTable holds the table of metrics in the runbook to what the stages register. `make generate` writes it anew.
func TestMetricsTable(t *testing.T) {
	readme := read(t, prometheusREADME)
	var b strings.Builder
	b.WriteString("| metric | type | unit | labels | over instances | meaning |\n|---|---|---|---|---|---|")
	for _, m := range registered(t) {
		labels := strings.Join(m.labels, ", ")
		fmt.Fprintf(&b, "\n| `%s` | %s | %s | %s | %s | %s |", m.name, m.kind(), m.unit(), labels, m.over(), strings.ReplaceAll(m.help, "|", "\\|"))
	}
	want := replace(t, readme, "metrics", strings.NewReplacer("<env>", "‹env›").Replace(b.String()))
	if want == readme {
		return
	}
	if !*update {
		t.Fatal(prometheusREADME + " is behind the metrics: make generate")
	}
	if err := os.WriteFile(prometheusREADME, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

// TestMetricNames holds the names to the convention prl_<stage>_<what>_<unit>, and to Prometheus' own.
func TestMetricNames(t *testing.T) {
	parts := map[string]bool{"stage": true, "broker": true, "process": true}
	for _, s := range Flow {
		parts[strings.ReplaceAll(s.Name, "-", "_")] = true
	}
	var families []*dto.MetricFamily
	for _, m := range registered(t) {
		if !parts[m.stage()] {
			t.Errorf("%s is of no stage", m.name)
		}
		if !strings.HasSuffix(m.help, ".") {
			t.Errorf("%s: its help is no sentence: %q", m.name, m.help)
		}
		if slices.Contains(m.labels, "run") || slices.Contains(m.labels, "instance") || slices.Contains(m.labels, "job") {
			t.Errorf("%s has a label that its target has: %v", m.name, m.labels)
		}
		families = append(families, &dto.MetricFamily{Name: &m.name, Help: &m.help, Type: &m.family})
	}
	problems, err := promlint.NewWithMetricFamilies(families).Lint()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

// TestRunsApart gathers the metrics of two runs of one process.
func TestRunsApart(t *testing.T) {
	gather := prometheus.Gatherers{}
	for _, run := range []string{"a", "b"} {
		gather = append(gather, metricsApp(t, func(c *Config) { c.Run.Name = run }).Registry)
	}
	families, err := gather.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		runs := map[string]bool{}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "run" {
					runs[l.GetValue()] = true
				}
			}
		}
		if f.GetName() == "prl_broker_throttled_seconds_total" && !maps.Equal(runs, map[string]bool{"a": true, "b": true}) {
			t.Errorf("%s is there of the runs %v", f.GetName(), runs)
		}
	}
}

// A metric is one that a stage has registered.
type metric struct {
	name, help string
	labels     []string
	family     dto.MetricType
}

func (m metric) stage() string {
	_, rest, _ := strings.Cut(m.name, "_")
	stage, _, _ := strings.Cut(rest, "_")
	return stage
}

func (m metric) kind() string { return strings.ToLower(m.family.String()) }

// unit is that of the name; what is counted, where it has none.
func (m metric) unit() string {
	words := strings.Split(strings.TrimSuffix(m.name, "_total"), "_")
	for _, word := range slices.Backward(words) {
		switch word {
		case "seconds":
			if slices.Contains(words, "timestamp") {
				return "seconds since 1970"
			}
			return word
		case "bytes", "ratio", "nats", "records", "rollouts", "requests", "steps", "groups", "tasks", "tokens", "messages", "calls", "files":
			return word
		}
	}
	return ""
}

// over is what makes one figure of those of several instances.
func (m metric) over() string {
	switch {
	case m.family != dto.MetricType_GAUGE, m.stage() == "envserver", m.stage() == "sink":
		return "sum"
	case m.name == "prl_stage_lag_records", m.name == "prl_stage_unfinished_records", m.stage() == inference.Stage && m.name != "prl_inference_policy_version":
		return "sum"
	case m.stage() == "process", m.name == "prl_stage_ready", m.name == "prl_inference_policy_version", m.name == "prl_broker_answered_timestamp_seconds":
		return "min"
	}
	return "max"
}

// recorder is a registry that keeps what is registered.
type recorder struct {
	*prometheus.Registry
	all []prometheus.Collector
}

func (r *recorder) Register(c prometheus.Collector) error {
	r.all = append(r.all, c)
	return r.Registry.Register(c)
}

func (r *recorder) MustRegister(cs ...prometheus.Collector) {
	for _, c := range cs {
		if err := r.Register(c); err != nil {
			panic(err)
		}
	}
}

// metricsApp is an app whose stages can all be made.
func metricsApp(t *testing.T, change func(*Config)) *App {
	t.Helper()
	cfg := DefaultConfig()
	if err := pipeline.LoadConfig("../configs/demo.toml", nil, nil, cfg); err != nil {
		t.Fatal(err)
	}
	cfg.Dir = t.TempDir()
	change(cfg)
	a, err := NewApp(cfg, []string{"localhost:1"}, "test", slog.New(slog.NewTextHandler(io.Discard, nil)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	return a
}

var described = regexp.MustCompile(`(?s)^Desc\{fqName: "(.*?)", help: (".*"), constLabels: \{.*?\}, variableLabels: \{(.*?)\}`)

// registered makes all stages, and is the metrics they have registered, in the order of the flow.
func registered(t *testing.T) []metric {
	t.Helper()
	by := map[string]metric{}
	collect := func(wanted func(Stage) bool, change func(*Config)) {
		a := metricsApp(t, change)
		reg := &recorder{Registry: prometheus.NewRegistry()}
		if err := a.instrument(reg); err != nil {
			t.Fatal(err)
		}
		for _, s := range Flow {
			if !wanted(s) {
				continue
			}
			if _, err := s.New(a, s); err != nil {
				t.Fatalf("stage %s: %v", s.Name, err)
			}
		}
		for _, c := range reg.all {
			descs := make(chan *prometheus.Desc, 100)
			c.Describe(descs)
			close(descs)
			for d := range descs {
				parts := described.FindStringSubmatch(d.String())
				if parts == nil {
					t.Fatalf("%v is described otherwise", d)
				}
				var help string
				if _, err := fmt.Sscanf(parts[2], "%q", &help); err != nil {
					t.Fatal(err)
				}
				m := metric{name: parts[1], help: help, family: typeOf(t, parts[1], c)}
				if parts[3] != "" {
					m.labels = strings.Split(parts[3], ",")
				}
				by[m.name] = m
			}
		}
	}
	collect(func(Stage) bool { return true }, func(c *Config) { c.Shadow.Name, c.Tracing.Endpoint = "test", "http://localhost:1" })
	collect(func(s Stage) bool { return s.Name == inference.Stage }, func(c *Config) {
		c.Inference.Backend, c.Inference.URLs, c.Inference.Remote.EvalURLs = inference.BackendVLLM, []string{"http://localhost:1"}, nil
	})
	order := map[string]int{"stage": -3, "broker": -2, "process": -1}
	for i, s := range Flow {
		order[s.Name] = i
	}
	return slices.SortedFunc(maps.Values(by), func(a, b metric) int {
		return cmp.Or(cmp.Compare(order[a.stage()], order[b.stage()]), strings.Compare(a.name, b.name))
	})
}

func typeOf(t *testing.T, name string, c prometheus.Collector) dto.MetricType {
	t.Helper()
	switch c.(type) {
	case *prometheus.CounterVec:
		return dto.MetricType_COUNTER
	case *prometheus.GaugeVec, *pipeline.Gauges:
		return dto.MetricType_GAUGE
	case *prometheus.HistogramVec:
		return dto.MetricType_HISTOGRAM
	}
	switch c.(type) { // their interfaces hold each other's methods
	case prometheus.Histogram:
		return dto.MetricType_HISTOGRAM
	case prometheus.Gauge:
		return dto.MetricType_GAUGE
	case prometheus.Counter:
		return dto.MetricType_COUNTER
	}
	t.Fatalf("of %s it cannot be seen what it is (%T): make it with pipeline.Instruments", name, c)
	return 0
}
