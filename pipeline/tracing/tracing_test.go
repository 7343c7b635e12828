package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// kept is a collector in memory.
type kept struct {
	mu      sync.Mutex
	spans   []sdktrace.ReadOnlySpan
	batches int
	block   chan struct{} // every export waits for it; nil for none
	err     error
}

func (k *kept) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	if k.block != nil {
		select {
		case <-k.block:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	k.batches++
	if k.err != nil {
		return k.err
	}
	k.spans = append(k.spans, spans...)
	return nil
}

func (k *kept) Shutdown(context.Context) error { return nil }

func testTracer(t *testing.T, e sdktrace.SpanExporter, ratio float64, timeout time.Duration) (*Tracer, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	tracer, err := newTracer(Options{Run: "demo", Instance: "one", Ratio: ratio, Timeout: timeout, Log: slog.New(slog.NewTextHandler(t.Output(), nil)), Registry: reg}, e)
	if err != nil {
		t.Fatal(err)
	}
	return tracer, reg
}

func counted(t *testing.T, reg *prometheus.Registry, name, result string) float64 {
	t.Helper()
	all, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && m.GetLabel()[0].GetValue() == result {
				return m.GetCounter().GetValue()
			}
		}
	}
	return 0
}

// TestIDsAreDerived holds ids to figures that do not change: stages of different versions of prl, and before and after a restart,
// must agree on them.
func TestIDsAreDerived(t *testing.T) {
	tracer, _ := testTracer(t, &kept{}, 1, time.Second)
	defer tracer.Close()
	root := tracer.Rollout(Rollout{Group: 7, Index: 3})
	if got, want := root.String(), "00-76cc36e9a7fb2fd96dbf491e057a02f9-0b55898d5743a9e1-01"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	seen := map[Context]string{}
	note := func(c Context, what string) {
		t.Helper()
		if old, ok := seen[c]; ok || !c.Valid() {
			t.Errorf("%s and %s have the ids %v", what, old, c)
		}
		seen[c] = what
	}
	traces := map[trace.TraceID]bool{}
	for _, r := range []Rollout{{"", 7, 3}, {"", 7, 4}, {"", 8, 3}, {"", 7, -1}, {"e", 7, 3}, {"", 3, 7}} {
		root := tracer.Rollout(r)
		if traces[root.Trace] {
			t.Errorf("%v has another's trace", r)
		}
		traces[root.Trace] = true
		for attempt := range 3 {
			note(root.Task(attempt).Context, fmt.Sprint("task", r, attempt))
			played := root.Played(attempt)
			note(played, fmt.Sprint("rollout", r, attempt))
			for n := range 3 {
				note(played.Child(CallSpan, n, 0), fmt.Sprint("call", r, attempt, n))
				note(played.Child(EnvironmentSpan, n), fmt.Sprint("environment", r, attempt, n))
			}
		}
		note(root.Scored(0).Context, fmt.Sprint("scored", r))
		note(root.Outcome().Context, fmt.Sprint("outcome", r))
		note(root.Trained().Context, fmt.Sprint("trained", r))
	}
	for s := range int64(3) {
		note(tracer.Step(s), fmt.Sprint("pack", s))
	}
	other, err := newTracer(Options{Run: "other", Ratio: 1, Timeout: time.Second, Log: slog.New(slog.DiscardHandler)}, &kept{})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	note(other.Rollout(Rollout{Group: 7, Index: 3}), "another run's")
}

// TestGroupsAreWhole draws groups: all rollouts of one or none, about as many as the ratio says, and those of a lower ratio
// among those of a higher one.
func TestGroupsAreWhole(t *testing.T) {
	few, _ := testTracer(t, &kept{}, 0.1, time.Second)
	more, _ := testTracer(t, &kept{}, 0.3, time.Second)
	none, _ := testTracer(t, &kept{}, 0, time.Second)
	defer few.Close()
	defer more.Close()
	defer none.Close()
	drawn := 0
	for g := range int64(5000) {
		whole := few.Rollout(Rollout{Group: g, Index: -1}).Valid()
		for i := range 4 {
			if few.Rollout(Rollout{Group: g, Index: i}).Valid() != whole {
				t.Fatalf("group %d is traced in part", g)
			}
		}
		if whole {
			drawn++
			if !more.Rollout(Rollout{Group: g, Index: 0}).Valid() {
				t.Fatalf("group %d is traced at a ratio of 0.1 and not at 0.3", g)
			}
		}
		if none.Rollout(Rollout{Group: g, Index: 0}).Valid() {
			t.Fatal("a group is traced at a ratio of 0")
		}
	}
	if drawn < 400 || drawn > 600 {
		t.Errorf("%d of 5000 groups at a ratio of 0.1", drawn)
	}
}

// TestOffIsFree holds tracing that is off to doing nothing.
func TestOffIsFree(t *testing.T) {
	var off *Tracer
	ctx, header := t.Context(), http.Header{}
	if n := testing.AllocsPerRun(100, func() {
		c := off.Rollout(Rollout{Group: 1})
		off.Emit("scorer", c.Task(0))
		off.Read(nil)
		if With(ctx, c) != ctx {
			t.Error("a context is made for nothing")
		}
		Inject(ctx, header)
	}); n > 0 {
		// The spans of a call are a slice of its caller; Emit is not reached where nothing is traced.
		t.Logf("%v allocations", n)
	}
	off.Flush()
	off.Close()
	if len(header) > 0 || off.Step(1).Valid() {
		t.Error("tracing that is off traces")
	}
}

// TestSpansAreWhatWasSaid sends a span and looks at what the collector has, hostile text included.
func TestSpansAreWhatWasSaid(t *testing.T) {
	k := &kept{}
	tracer, reg := testTracer(t, k, 1, time.Second)
	root := tracer.Rollout(Rollout{Group: 1, Index: 2})
	task := root.Task(0)
	task.Start, task.End = time.Unix(1, 0), time.Unix(2, 0)
	child := root.Played(0).Under(CallSpan, 0)
	child.Start, child.End = time.Unix(3, 0), time.Unix(4, 0)
	child.Attributes = []attribute.KeyValue{Env.String("a\xffb"), Stop.String(strings.Repeat("x", 1<<20))}
	child.Links, child.Error = []Context{root, {}}, "\xff"+strings.Repeat("y", 1<<20)
	tracer.Emit("emitter", task, Span{Name: "none"})
	tracer.Emit("envserver", child)
	tracer.Close()
	if len(k.spans) != 2 || counted(t, reg, "prl_process_spans_total", sent) != 2 {
		t.Fatalf("%d spans", len(k.spans))
	}
	first, second := k.spans[0], k.spans[1]
	if first.SpanContext().TraceID() != root.Trace || first.SpanContext().SpanID() != root.Span || first.Parent().IsValid() || !first.StartTime().Equal(task.Start) || !first.EndTime().Equal(task.End) {
		t.Errorf("%v from %v to %v", first.SpanContext(), first.StartTime(), first.EndTime())
	}
	if second.Parent().SpanID() != child.Parent || second.SpanContext().SpanID() != child.Span || len(second.Links()) != 1 || second.Links()[0].SpanContext.SpanID() != root.Span {
		t.Errorf("%v under %v, links %v", second.SpanContext(), second.Parent(), second.Links())
	}
	attributes := second.Attributes()
	if attributes[0].Value.AsString() != "a\uFFFDb" || len(attributes[1].Value.AsString()) > maxText || len(second.Status().Description) > maxText+3 {
		t.Errorf("texts of %d bytes: %q", len(attributes[1].Value.AsString()), attributes[0].Value.AsString())
	}
	service, _ := second.Resource().Set().Value("service.name")
	if service.AsString() != "prl.envserver" {
		t.Errorf("service %q", service.AsString())
	}
}

// TestQueueIsBounded fills the queue while the collector does not answer: nobody waits, and what is lost is counted.
func TestQueueIsBounded(t *testing.T) {
	k := &kept{block: make(chan struct{})}
	tracer, reg := testTracer(t, k, 1, time.Minute)
	span := tracer.Rollout(Rollout{Group: 1}).Task(0)
	const more = 1000
	for range maxQueue + 2*maxBatch + more {
		tracer.Emit("emitter", span)
	}
	lost := counted(t, reg, "prl_process_spans_total", dropped)
	if lost < more-maxBatch || lost > more+2*maxBatch {
		t.Errorf("%v spans of %d were dropped", lost, maxQueue+2*maxBatch+more)
	}
	close(k.block)
	tracer.Close()
	if sent := counted(t, reg, "prl_process_spans_total", sent); sent+lost != maxQueue+2*maxBatch+more {
		t.Errorf("%v sent, %v dropped", sent, lost)
	}
}

// TestCollectorAway loses spans and counts them, and the end does not wait for a collector that hangs.
func TestCollectorAway(t *testing.T) {
	refusing := &kept{err: errors.New("away")}
	tracer, reg := testTracer(t, refusing, 1, time.Second)
	tracer.Emit("emitter", tracer.Rollout(Rollout{Group: 1}).Task(0))
	tracer.Flush()
	if refusing.batches != 1 || counted(t, reg, "prl_process_spans_total", failed) != 1 {
		t.Errorf("%d batches, %v failed", refusing.batches, counted(t, reg, "prl_process_spans_total", failed))
	}
	tracer.Close()

	hangs := &kept{block: make(chan struct{})}
	tracer, reg = testTracer(t, hangs, 1, 20*time.Millisecond)
	for range 3 * maxBatch {
		tracer.Emit("emitter", tracer.Rollout(Rollout{Group: 1}).Task(0))
	}
	tracer.Close() // the test's own deadline is what would end it
	if n := counted(t, reg, "prl_process_spans_total", failed); n != 3*maxBatch {
		t.Errorf("%v spans failed", n)
	}
}

// TestEndpoint sends over HTTP to where the endpoint says, with the headers.
func TestEndpoint(t *testing.T) {
	for path, want := range map[string]string{"": "/v1/traces", "/": "/v1/traces", "/otlp/v1/traces": "/otlp/v1/traces"} {
		got := make(chan string, 1)
		s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- r.URL.Path + " " + r.Header.Get("X-Key") }))
		tracer, err := New(Options{Run: "demo", Endpoint: s.URL + path, Headers: map[string]string{"X-Key": "secret"}, Ratio: 1, Timeout: 5 * time.Second, Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		tracer.Emit("emitter", tracer.Rollout(Rollout{Group: 1}).Task(0))
		tracer.Close()
		if is := <-got; is != want+" secret" {
			t.Errorf("%q goes to %s, want %s", path, is, want)
		}
		s.Close()
	}
}

func TestHeaders(t *testing.T) {
	good := "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	if c, ok := Parse(good); !ok || c.String() != good {
		t.Errorf("%v, %v", c, ok)
	}
	if c, ok := Parse(strings.TrimSuffix(good, "1") + "0"); !ok || c.Valid() {
		t.Errorf("a trace that is not sampled: %v, %v", c, ok)
	}
	if c, ok := Parse("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-what-the-future-brings"); !ok || !c.Valid() {
		t.Errorf("of a later version: %v, %v", c, ok)
	}
	tracer, reg := testTracer(t, &kept{}, 1, time.Second)
	defer tracer.Close()
	hostile := []string{"", "00", good[:54], good + "x", "ff" + good[2:], strings.ToUpper(good), "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01", good + "-" + strings.Repeat("a", 1<<20), "\x00\xff" + good, strings.ReplaceAll(good, "-", "\n")}
	for _, h := range hostile {
		if c := tracer.Read([]string{h}); c.Valid() {
			t.Errorf("%.60q is read as %v", h, c)
		}
	}
	if c := tracer.Read([]string{good, good}); c.Valid() {
		t.Error("two headers are one")
	}
	if n := counted(t, reg, "prl_process_trace_headers_total", broken); n != float64(len(hostile)+1) {
		t.Errorf("%v of %d were broken", n, len(hostile)+1)
	}
	if c := tracer.Read([]string{good}); c.String() != good || counted(t, reg, "prl_process_trace_headers_total", named) != 1 {
		t.Errorf("%v", c)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
	f.Fuzz(func(t *testing.T, header string) {
		c, ok := Parse(header)
		if c.Valid() {
			if again, same := Parse(c.String()); !ok || !same || again != c {
				t.Errorf("%q is %v, and that is %v", header, c, again)
			}
		}
	})
}

// TestRequestsCarry sends the span of a context over HTTP and reads it on the other side.
func TestRequestsCarry(t *testing.T) {
	tracer, _ := testTracer(t, &kept{}, 1, time.Second)
	defer tracer.Close()
	got := make(chan Context, 1)
	s := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { got <- From(Extract(r.Context(), r.Header)) }))
	defer s.Close()
	client := &http.Client{Transport: Carry(nil)}
	for _, c := range []Context{tracer.Rollout(Rollout{Group: 1}), {}} {
		r, err := http.NewRequestWithContext(With(t.Context(), c), http.MethodGet, s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if at := <-got; at != c {
			t.Errorf("%v arrives as %v", c, at)
		}
		if len(r.Header) > 0 {
			t.Error("the caller's request was changed")
		}
	}
	client.CloseIdleConnections()
}
