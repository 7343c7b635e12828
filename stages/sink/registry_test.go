package sink

import (
	"net/http"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/sr/srfake"

	"github.com/prl-project/prl/pipeline"
)

func resolved(t testing.TB, rt *pipeline.Runtime, reg *srfake.Registry) *pipeline.SchemaRegistry {
	t.Helper()
	cfg := pipeline.DefaultSchemaRegistryConfig()
	cfg.URLs = []string{reg.URL()}
	g, err := pipeline.NewSchemaRegistry(cfg, rt.Log)
	if err == nil {
		err = g.Resolve(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// impatient is a client that knows no id yet and soon gives up asking.
func impatient(t testing.TB, rt *pipeline.Runtime, reg *srfake.Registry) *pipeline.SchemaRegistry {
	t.Helper()
	cfg := pipeline.DefaultSchemaRegistryConfig()
	cfg.URLs, cfg.Timeout = []string{reg.URL()}, pipeline.Duration(100*time.Millisecond)
	g, err := pipeline.NewSchemaRegistry(cfg, rt.Log)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// Records whose schema the registry cannot tell for now are not written as unreadable: the sink waits.
func TestSink_WaitsForTheRegistry(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	reg := srfake.New()
	defer reg.Close()
	rt.Schemas = resolved(t, rt, reg)
	produce(t, rt, client(t, rt), "a", 3)

	reader := *rt
	reader.Schemas = impatient(t, rt, reg)
	asked := make(chan struct{}, 1000)
	reg.Intercept(func(w http.ResponseWriter, _ *http.Request) bool {
		asked <- struct{}{}
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	})
	sinkConfig := config(dir)
	sinkConfig.MaxRows = 3
	stop := start(t, &reader, sinkConfig)
	tried := func() { // more than are put within the time-out
		for range 4 {
			select {
			case <-asked:
			case <-time.After(testDeadline):
				t.Fatal("the registry is not asked")
			}
		}
	}
	tried()
	produce(t, rt, client(t, rt), "b", 3)
	tried()
	tried()
	if got := points(t, dir); len(got) != 0 {
		t.Errorf("%d records were written while their schema was not known", len(got))
	}
	reg.ClearInterceptors()
	eventually(t, func() bool { return slices.Equal(points(t, dir), slices.Concat(want("a", 3), want("b", 3))) })
	if files, err := filepath.Glob(filepath.Join(dir, "metrics", "metrics-*")); err != nil || len(files) != 2 {
		t.Errorf("files %v, %v; the sink read on while it waited", files, err)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// A stop while the registry is down says what it left behind; the next start writes it, those of the other framing too.
func TestSink_StopsWithoutTheRegistry(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	produce(t, rt, client(t, rt), "a", 2)
	reg := srfake.New()
	known := resolved(t, rt, reg)
	rt.Schemas = known
	produce(t, rt, client(t, rt), "b", 2)
	reg.Close()
	rt.Schemas = impatient(t, rt, reg)
	sinkConfig := config(dir)
	sinkConfig.Drain = pipeline.Duration(500 * time.Millisecond)
	stop := start(t, rt, sinkConfig)
	eventually(t, func() bool {
		return counted(t, rt.Metrics.Records.WithLabelValues(stage, pipeline.TopicMetrics)) == 4
	})
	if err := stop(); err == nil {
		t.Error("the sink says nothing of what it did not write")
	}
	rt.Schemas = known
	runToEnd(t, rt, config(dir))
	if got := points(t, dir); !slices.Equal(got, slices.Concat(want("a", 2), want("b", 2))) {
		t.Errorf("files hold %v", got)
	}
	for _, r := range read(t, dir, pipeline.TopicMetrics) {
		if r["kafka_error"] != nil {
			t.Errorf("%v", r)
		}
	}
}

func counted(t testing.TB, c prometheus.Collector) float64 {
	t.Helper()
	reg := prometheus.NewRegistry()
	if err := reg.Register(c); err != nil {
		t.Fatal(err)
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return families[0].GetMetric()[0].GetCounter().GetValue()
}
