package pipeline

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
)

// lines is a log that can be waited for.
type lines chan string

func (l lines) Write(b []byte) (int, error) {
	l <- string(b)
	return len(b), nil
}

func TestTelemetry(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	reg, health, log, served := prometheus.NewRegistry(), &Health{}, make(lines, 10), make(chan error, 1)
	NewMetrics(reg).Records.WithLabelValues("scorer", "traces").Inc()
	go func() {
		served <- ServeTelemetry(ctx, "localhost:0", reg, health, slog.New(slog.NewTextHandler(log, nil)))
	}()
	url := regexp.MustCompile(`http://[0-9.:]+`).FindString(<-log)
	get := func(path string) (int, string) {
		t.Helper()
		resp, err := http.Get(url + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(body)
	}
	if code, body := get("/healthz"); code != http.StatusOK || body != "ok\n" {
		t.Errorf("/healthz: %d %q", code, body)
	}
	if code, _ := get("/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("/readyz before any stage is made: %d", code)
	}
	health.Set("scorer", false)
	if code, body := get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, `"scorer":false`) {
		t.Errorf("/readyz before: %d %q", code, body)
	}
	health.Set("scorer", true)
	if code, _ := get("/readyz"); code != http.StatusOK {
		t.Errorf("/readyz after: %d", code)
	}
	if _, body := get("/metrics"); !strings.Contains(body, `prl_stage_records_total{stage="scorer",topic="traces"} 1`) {
		t.Errorf("/metrics: %s", body)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestReadyOnceJoined holds /readyz to what it says: a processor is ready when it has joined its group.
func TestReadyOnceJoined(t *testing.T) {
	rt, _ := testRuntime(t)
	rt.Health = &Health{}
	stop := start(t, rt, toyConfig())
	produce(t, rt, trace(0, 0), trace(0, 1))
	committed(t, rt, TopicSamples, 1)
	if stages, all := rt.Health.snapshot(); !all || !stages["scorer"] {
		t.Errorf("it works and is not ready: %v", stages)
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if _, all := rt.Health.snapshot(); all {
		t.Error("it has stopped and is ready")
	}
}

// TestLeaveGivesPartitionsUp stops an instance for good: its group has no member left, and another one finishes what it
// had open.
func TestLeaveGivesPartitionsUp(t *testing.T) {
	onBoth(t, func(t *testing.T, rt *Runtime) {
		rt.Leave = true
		stop := start(t, rt, toyConfig())
		produce(t, rt, trace(0, 0), trace(1, 0), trace(2, 0), trace(3, 0), trace(3, 1))
		committed(t, rt, TopicSamples, 1)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
		groups, err := kadm.NewClient(client(t, rt)).DescribeGroups(t.Context(), rt.TopicName("scorer"))
		if err != nil {
			t.Fatal(err)
		}
		if members := groups[rt.TopicName("scorer")].Members; len(members) > 0 {
			t.Errorf("%d members are left in the group", len(members))
		}
		stop = start(t, another(t, rt, "two"), toyConfig())
		produce(t, rt, trace(0, 1), trace(1, 1), trace(2, 1))
		oncePerGroup(t, committed(t, rt, TopicSamples, 4), 4)
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	})
}
