package tracing

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Header is the name of the header of records and requests that says to which span they belong, in the form of the W3C
// (https://www.w3.org/TR/trace-context/).
const Header = "traceparent"

// maxHeader bounds what is looked at of one that others wrote.
const maxHeader = 256

// A Context names a span. The zero value names none.
type Context struct {
	Trace trace.TraceID
	Span  trace.SpanID
}

// Valid reports whether it names a span.
func (c Context) Valid() bool { return c.Trace.IsValid() && c.Span.IsValid() }

// Child names a span under c by its name and what tells it from others of that name.
func (c Context) Child(name string, which ...int) Context {
	return Context{c.Trace, spanID(c.Trace, c.Span, name, which...)}
}

// String is the traceparent of c.
func (c Context) String() string {
	var room [55]byte
	b := append(room[:0], "00-"...)
	b = append(append(b, c.Trace.String()...), '-')
	return string(append(append(b, c.Span.String()...), "-01"...))
}

func (c Context) otel() trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{TraceID: c.Trace, SpanID: c.Span, TraceFlags: trace.FlagsSampled, Remote: true})
}

// Parse reads a traceparent. What is none, or belongs to a trace that is not sampled, is the zero Context.
func Parse(header string) (c Context, ok bool) {
	if len(header) > maxHeader {
		return Context{}, false
	}
	read := propagation.TraceContext{}.Extract(context.Background(), propagation.MapCarrier{Header: header})
	s := trace.SpanContextFromContext(read)
	if !s.IsValid() {
		return Context{}, false
	}
	if !s.IsSampled() {
		return Context{}, true
	}
	return Context{s.TraceID(), s.SpanID()}, true
}

type contextKey struct{}

// With makes what is done under ctx belong to a span.
func With(ctx context.Context, c Context) context.Context {
	if !c.Valid() {
		return ctx
	}
	return context.WithValue(ctx, contextKey{}, c)
}

// From is the span to which what is done under ctx belongs; the zero Context without one.
func From(ctx context.Context) Context {
	c, _ := ctx.Value(contextKey{}).(Context)
	return c
}

// Inject tells whoever gets a request to which span of ctx it belongs. Without one the header stays as it is.
func Inject(ctx context.Context, h http.Header) {
	if c := From(ctx); c.Valid() {
		h.Set(Header, c.String())
	}
}

// Extract is ctx with the span that the sender of a request names.
func Extract(ctx context.Context, h http.Header) context.Context {
	if values := h.Values(Header); len(values) == 1 {
		if c, ok := Parse(values[0]); ok {
			return With(ctx, c)
		}
	}
	return ctx
}

// Carry makes every request of a client tell to which span of its context it belongs; base is nil for http.DefaultTransport.
func Carry(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return carrier{base}
}

type carrier struct{ http.RoundTripper }

func (t carrier) RoundTrip(r *http.Request) (*http.Response, error) {
	if From(r.Context()).Valid() {
		r = r.Clone(r.Context()) // a RoundTripper may not change what it is given
		Inject(r.Context(), r.Header)
	}
	return t.RoundTripper.RoundTrip(r)
}

// CloseIdleConnections lets http.Client close those of the transport below.
func (t carrier) CloseIdleConnections() {
	if c, ok := t.RoundTripper.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}
