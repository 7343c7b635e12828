package inference

import (
	"context"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/prl-project/prl/pipeline/tracing"
)

// A course is when what became of a request that is traced. A nil one notes nothing.
type course struct {
	server       atomic.Pointer[string]
	began, first atomic.Int64 // nanoseconds since start; 0 for not yet
	start        time.Time
}

func (c *course) begin(server string) {
	if c != nil && c.began.CompareAndSwap(0, max(int64(time.Since(c.start)), 1)) && server != "" {
		c.server.Store(&server)
	}
}

func (c *course) token() {
	if c != nil && c.first.Load() == 0 {
		c.first.Store(max(int64(time.Since(c.start)), 1))
	}
}

// figures are the parts of a request's time, as far as they are known.
func (c *course) figures(whole time.Duration) (list []attribute.KeyValue) {
	began, first := c.began.Load(), c.first.Load()
	if began > 0 {
		list = append(list, tracing.Queue.Float64(time.Duration(began).Seconds()))
	}
	if began > 0 && first > 0 {
		list = append(list, tracing.Prefill.Float64(time.Duration(first-began).Seconds()), tracing.Decode.Float64((whole - time.Duration(first)).Seconds()))
	}
	if at := c.server.Load(); at != nil {
		list = append(list, tracing.Address.String(*at))
	}
	return list
}

type courseKey struct{}

func courseOf(ctx context.Context) *course {
	c, _ := ctx.Value(courseKey{}).(*course)
	return c
}

// Begun says that a backend has begun with the request of ctx: until then it waited. server is who has it, where there are
// several. Of several tries the first counts.
func Begun(ctx context.Context, server string) { courseOf(ctx).begin(server) }

// traced begins the span of a request that belongs to one. done is nil where it does not.
func (s *Server) traced(ctx context.Context, name string, seed int64) (_ context.Context, done func(Request, Completion, error)) {
	from := tracing.From(ctx)
	if s.rt.Tracing == nil || !from.Valid() {
		return ctx, nil
	}
	c := &course{start: time.Now()}
	span := from.Under(name, int(seed))
	span.Kind, span.Start = tracing.Answerer, c.start
	return context.WithValue(tracing.With(ctx, span.Context), courseKey{}, c), func(r Request, out Completion, err error) {
		span.End = time.Now()
		span.Attributes = append(c.figures(span.End.Sub(span.Start)), tracing.PromptTok.Int(len(r.Tokens)), tracing.CachedTok.Int(out.Cached), tracing.SampledTok.Int(len(out.Tokens)))
		if r.Policy != "" {
			span.Attributes = append(span.Attributes, tracing.Policy.String(r.Policy))
		}
		if n := len(out.Versions); n > 0 {
			span.Attributes = append(span.Attributes, tracing.Version.Int64(out.Versions[n-1].Version))
		}
		if err != nil {
			span.Error = err.Error()
		} else if out.FinishReason != "" {
			span.Attributes = append(span.Attributes, tracing.Finish.StringSlice([]string{out.FinishReason}))
		}
		s.rt.Tracing.Emit(Stage, span)
	}
}
