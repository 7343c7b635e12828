package tracing

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/trace"
)

// Kinds of spans: what writes a record and what reads one, what asks and what answers.
const (
	Producer = trace.SpanKindProducer
	Consumer = trace.SpanKindConsumer
	Asker    = trace.SpanKindClient
	Answerer = trace.SpanKindServer
)

// A Span is something that was done.
type Span struct {
	Context
	Parent     trace.SpanID // of the same trace; zero at its root
	Name       string
	Kind       trace.SpanKind
	Start, End time.Time
	Attributes []attribute.KeyValue
	Links      []Context // that are not valid are left out
	Error      string    // why it failed; empty where it did not
}

// Under makes a span a child of another one, by its name and what tells it from others of that name.
func (c Context) Under(name string, which ...int) Span {
	return Span{Context: c.Child(name, which...), Parent: c.Span, Name: name}
}

// wanted is the span whose ids the provider is to give.
type wanted struct{}

// ids gives spans the ids that they have already.
type ids struct{}

func (ids) NewIDs(ctx context.Context) (trace.TraceID, trace.SpanID) {
	c, _ := ctx.Value(wanted{}).(Context)
	return c.Trace, c.Span
}

func (ids) NewSpanID(ctx context.Context, _ trace.TraceID) trace.SpanID {
	c, _ := ctx.Value(wanted{}).(Context)
	return c.Span
}

// emit hands a span to the provider behind tracer.
func (s Span) emit(tracer trace.Tracer) {
	if !s.Valid() {
		return
	}
	ctx := context.WithValue(context.Background(), wanted{}, s.Context)
	if s.Parent.IsValid() {
		ctx = trace.ContextWithRemoteSpanContext(ctx, Context{s.Trace, s.Parent}.otel())
	}
	for i, a := range s.Attributes {
		if a.Value.Type() == attribute.STRING {
			s.Attributes[i].Value = attribute.StringValue(clean(a.Value.AsString()))
		}
	}
	var links []trace.Link
	for _, l := range s.Links {
		if l.Valid() {
			links = append(links, trace.Link{SpanContext: l.otel()})
		}
	}
	_, span := tracer.Start(ctx, s.Name, trace.WithTimestamp(s.Start), trace.WithSpanKind(s.Kind),
		trace.WithAttributes(s.Attributes...), trace.WithLinks(links...))
	if s.Error != "" {
		span.SetStatus(codes.Error, clean(s.Error))
	}
	span.End(trace.WithTimestamp(s.End))
}
