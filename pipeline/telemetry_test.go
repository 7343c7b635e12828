package pipeline

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
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
		served <- ServeTelemetry(ctx, "localhost:0", PprofLocal, reg, health, slog.New(slog.NewTextHandler(log, nil)))
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

// TestProfilesOnRequest serves no profiles unless they are asked for, and those that are local to nobody but this machine: not to
// others, nor to a page in a browser here that calls this address by another name.
func TestProfilesOnRequest(t *testing.T) {
	for profiles, want := range map[string]map[string]int{ // status by host of the request
		PprofOff:   {"localhost": http.StatusNotFound},
		PprofLocal: {"localhost:80": http.StatusOK, "127.0.0.1": http.StatusOK, "[::1]:80": http.StatusOK, "evil.example": http.StatusForbidden, "": http.StatusForbidden},
		PprofAny:   {"localhost": http.StatusOK, "prl.example": http.StatusOK},
	} {
		mux := http.NewServeMux()
		serveProfiles(mux, profiles)
		for host, want := range want {
			r := httptest.NewRequest(http.MethodGet, "/debug/pprof/goroutine?debug=1", nil)
			r.Host, r.RemoteAddr = host, "127.0.0.1:1234"
			for _, from := range []string{"127.0.0.1:1234", "192.0.2.1:1234"} {
				if r.RemoteAddr = from; from != "127.0.0.1:1234" && profiles == PprofLocal {
					want = http.StatusForbidden
				}
				w := httptest.NewRecorder()
				mux.ServeHTTP(w, r)
				if w.Code != want {
					t.Errorf("%s: a request to %q from %s gets %d, want %d", profiles, host, from, w.Code, want)
				}
			}
		}
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
