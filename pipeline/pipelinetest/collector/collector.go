// Package collector is an OpenTelemetry collector for tests: it takes spans over OTLP/HTTP, as a real one would, and keeps them.
package collector

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	otlp "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/prl-project/prl/pipeline/tracing"
)

// A Span is one that was sent, with the service that made it.
type Span struct {
	*otlp.Span
	Service string
}

// Context names the span.
func (s Span) Context() tracing.Context { return named(s.TraceId, s.SpanId) }

// Parent names the span above it; not valid at a root.
func (s Span) Parent() tracing.Context { return named(s.TraceId, s.ParentSpanId) }

// Link is where the i-th link leads; not valid where there is none.
func (s Span) Link(i int) (c tracing.Context) {
	if i < len(s.Links) {
		c = named(s.Links[i].TraceId, s.Links[i].SpanId)
	}
	return c
}

// LinksTo reports whether a link leads to a span.
func (s Span) LinksTo(to tracing.Context) bool {
	return slices.ContainsFunc(s.Links, func(l *otlp.Span_Link) bool { return named(l.TraceId, l.SpanId) == to })
}

func named(of, span []byte) (c tracing.Context) {
	copy(c.Trace[:], of)
	copy(c.Span[:], span)
	return c
}

// Text is an attribute, empty where there is none of that name.
func (s Span) Text(key string) string {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetStringValue()
		}
	}
	return ""
}

// Number is an attribute, -1 where there is none of that name.
func (s Span) Number(key string) int64 {
	for _, a := range s.Attributes {
		if a.Key == key {
			return a.Value.GetIntValue()
		}
	}
	return -1
}

// Has reports whether there is an attribute of a name.
func (s Span) Has(key string) bool {
	for _, a := range s.Attributes {
		if a.Key == key {
			return true
		}
	}
	return false
}

// A Collector listens at URL.
type Collector struct {
	*httptest.Server
	mu    sync.Mutex
	spans []Span
}

// Start makes a collector that ends with the test.
func Start(t testing.TB) *Collector {
	c := &Collector{}
	c.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := c.take(r); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			t.Errorf("the collector was sent what it cannot read: %v", err)
		}
	}))
	t.Cleanup(c.Close)
	return c
}

func (c *Collector) take(r *http.Request) error {
	if r.URL.Path != "/v1/traces" {
		return fmt.Errorf("spans at %s", r.URL.Path)
	}
	body, err := gzip.NewReader(r.Body)
	if err != nil {
		return err
	}
	data, err := io.ReadAll(body)
	if err != nil {
		return nil // the sender was killed
	}
	var sent collector.ExportTraceServiceRequest
	if err := proto.Unmarshal(data, &sent); err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, of := range sent.ResourceSpans {
		service := ""
		for _, a := range of.Resource.Attributes {
			if a.Key == "service.name" {
				service = a.Value.GetStringValue()
			}
		}
		for _, scope := range of.ScopeSpans {
			for _, s := range scope.Spans {
				c.spans = append(c.spans, Span{s, service})
			}
		}
	}
	return nil
}

// Spans are all that were sent, in the order in which they came.
func (c *Collector) Spans() []Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}
