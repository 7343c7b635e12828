package tracing

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracehttp"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
)

// scope is what makes the spans.
const scope = "github.com/prl-project/prl"

// Options say what is traced and where the spans go.
type Options struct {
	Run      string
	Instance string
	// Endpoint is the collector's OTLP over HTTP; without a path, /v1/traces.
	Endpoint string
	// Headers go with every request to it.
	Headers map[string]string
	// Ratio is the share of groups that are traced.
	Ratio float64
	// Timeout bounds one request, tries again included, and the end.
	Timeout  time.Duration
	Log      *slog.Logger
	Registry prometheus.Registerer // may be nil
}

// A Tracer makes the spans of one run in one process. A nil one is off: it traces nothing, and all its methods may be called.
type Tracer struct {
	o       Options
	run     identity
	queue   *queue
	headers *prometheus.CounterVec

	mu        sync.Mutex
	providers map[string]trace.Tracer // by stage
}

// New makes a tracer that has a goroutine until Close. It connects when there is something to send.
func New(o Options) (*Tracer, error) {
	at, err := url.Parse(o.Endpoint)
	if err != nil {
		return nil, fmt.Errorf("tracing.endpoint: %w", err)
	}
	if strings.Trim(at.Path, "/") == "" {
		at.Path = "/v1/traces"
	}
	exporter, err := otlptracehttp.New(context.Background(), // it makes no connection
		otlptracehttp.WithEndpointURL(at.String()), otlptracehttp.WithHeaders(maps.Clone(o.Headers)), otlptracehttp.WithTimeout(o.Timeout),
		otlptracehttp.WithCompression(otlptracehttp.GzipCompression),
		otlptracehttp.WithRetry(otlptracehttp.RetryConfig{Enabled: true, InitialInterval: 200 * time.Millisecond, MaxInterval: o.Timeout, MaxElapsedTime: o.Timeout}))
	if err != nil {
		return nil, fmt.Errorf("tracing: %w", err)
	}
	return newTracer(o, exporter)
}

func newTracer(o Options, exporter sdktrace.SpanExporter) (*Tracer, error) {
	spans := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prl_process_spans_total",
		Help: "Spans by result: sent, dropped (the queue was full) or failed (the collector did not take them)."}, []string{"result"})
	t := &Tracer{
		o: o, run: newIdentity(o.Run), providers: map[string]trace.Tracer{},
		headers: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "prl_process_trace_headers_total",
			Help: "Trace contexts read from records by result: read, or broken (left aside)."}, []string{"result"}),
	}
	if o.Registry != nil {
		if err := errors.Join(o.Registry.Register(spans), o.Registry.Register(t.headers)); err != nil {
			return nil, fmt.Errorf("tracing: register its metrics: %w", err)
		}
	}
	t.queue = newQueue(exporter, o.Timeout, o.Log, func(result string, n int) { spans.WithLabelValues(result).Add(float64(n)) })
	return t, nil
}

// Flush sends what waits now, and returns when the collector has it or has refused it.
func (t *Tracer) Flush() {
	if t != nil {
		t.queue.flush()
	}
}

// Close sends what waits, for no longer than the timeout, and ends the tracer.
func (t *Tracer) Close() {
	if t == nil {
		return
	}
	t.queue.close()
	ctx, cancel := context.WithTimeout(context.Background(), t.o.Timeout)
	defer cancel()
	if err := t.queue.exporter.Shutdown(ctx); err != nil {
		t.o.Log.Debug("tracing did not end in order", "error", err)
	}
}

// Rollout is the root of a rollout's trace: the task that asked for it at first. It is the zero Context where its group is
// not traced.
func (t *Tracer) Rollout(r Rollout) Context {
	if t == nil {
		return Context{}
	}
	if !t.run.drawn(r, t.o.Ratio) {
		return Context{}
	}
	return Context{Trace: t.run.rollout(r)}.Child(TaskSpan, 0)
}

// Step is the root of a training step's trace: its packing.
func (t *Tracer) Step(s int64) Context {
	if t == nil || t.o.Ratio <= 0 {
		return Context{}
	}
	return Context{Trace: t.run.step(s)}.Child(PackSpan)
}

// Emit sends spans of a stage.
func (t *Tracer) Emit(stage string, spans ...Span) {
	if t == nil || len(spans) == 0 {
		return
	}
	tracer := t.provider(stage)
	for _, s := range spans {
		s.emit(tracer)
	}
}

// provider makes the spans of a stage: in what shows traces, each stage is a service.
func (t *Tracer) provider(stage string) trace.Tracer {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p := t.providers[stage]; p != nil {
		return p
	}
	of := resource.NewSchemaless(attribute.String("service.name", "prl."+stage), attribute.String("service.namespace", "prl"),
		Instance.String(clean(t.o.Instance)), Run.String(clean(t.o.Run)), Stage.String(stage))
	// The limits are of what one span may take of the queue's memory.
	limits := sdktrace.SpanLimits{AttributeValueLengthLimit: maxText, AttributeCountLimit: 64, EventCountLimit: 16, LinkCountLimit: 4096,
		AttributePerEventCountLimit: 8, AttributePerLinkCountLimit: 8}
	p := sdktrace.NewTracerProvider(sdktrace.WithIDGenerator(ids{}), sdktrace.WithSampler(sdktrace.AlwaysSample()),
		sdktrace.WithSpanProcessor(t.queue), sdktrace.WithResource(of), sdktrace.WithRawSpanLimits(limits)).Tracer(scope)
	t.providers[stage] = p
	return p
}

// What was read of a header.
const (
	named  = "read"
	broken = "broken"
)

// Read is the span that a record names, given all its headers of the name Header. What is broken names none, and says nothing
// about the record.
func (t *Tracer) Read(headers []string) Context {
	if t == nil || len(headers) == 0 {
		return Context{}
	}
	c, ok := Parse(headers[0])
	if !ok || len(headers) > 1 { // of several none can be the right one
		t.headers.WithLabelValues(broken).Inc()
		return Context{}
	}
	t.headers.WithLabelValues(named).Inc()
	return c
}
