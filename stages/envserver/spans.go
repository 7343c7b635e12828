package envserver

import (
	"context"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
)

// maxSpans is how many spans of one rollout are kept.
const maxSpans = 1000

// A book keeps the spans of a job's rollouts until their traces are acknowledged: work that was for nothing leaves none. A nil
// one keeps nothing. It is for one goroutine.
type book struct {
	tracer    *tracing.Tracer
	from      tracing.Context // the span that the task's record names
	recorders []*recorder
}

// traced gives a job its book, if its group is traced.
func (s *Server) traced(ctx context.Context, j *job) context.Context {
	j.book = nil
	if s.rt.Tracing == nil || !s.rt.Tracing.Rollout(rolloutOf(j.task, j.task.RolloutIndex)).Valid() {
		return ctx
	}
	j.book = &book{tracer: s.rt.Tracing, from: j.from}
	return context.WithValue(ctx, bookKey{}, j.book)
}

type bookKey struct{}

func rolloutOf(t *schemas.Task, index int) tracing.Rollout {
	return tracing.Rollout{Eval: t.Eval, Group: t.GroupID, Index: index}
}

// record makes what is done under ctx part of a rollout's trace, where the job has a book.
func record(ctx context.Context, t *schemas.Task, index int) *recorder {
	b, _ := ctx.Value(bookKey{}).(*book)
	if b == nil {
		return nil
	}
	r := b.recorder(t.Env, rolloutOf(t, index), t.Attempt)
	b.recorders = append(b.recorders, r)
	return r
}

func (b *book) recorder(env string, of tracing.Rollout, attempt int) *recorder {
	root := b.tracer.Rollout(of)
	r := &recorder{of: of, counts: map[string]int{}, span: tracing.Span{
		Context: root.Played(attempt), Parent: root.Task(attempt).Span, Name: tracing.RolloutSpan, Kind: tracing.Consumer, Start: time.Now(),
		Attributes: []attribute.KeyValue{tracing.Env.String(env), tracing.Group.Int64(of.Group), tracing.Index.Int(of.Index), tracing.Attempt.Int(attempt)},
	}}
	if b.from.Valid() && b.from.Trace != root.Trace { // of the group, or of a program that is not prl
		r.span.Links = []tracing.Context{b.from}
	}
	return r
}

// acknowledged sends the spans of traces that are written.
func (s *Server) acknowledged(j *job, traces []*schemas.Trace) {
	b := j.book
	if s.rt.Tracing == nil {
		return
	}
	if b == nil {
		b = &book{tracer: s.rt.Tracing, from: j.from} // it was refused, or is not traced
	}
	for _, t := range traces {
		of := rolloutOf(j.task, t.RolloutIndex)
		i := slices.IndexFunc(b.recorders, func(r *recorder) bool { return r.of == of })
		var r *recorder
		if i >= 0 {
			r = b.recorders[i]
		} else if r = b.recorder(t.Env, of, t.Attempt); !r.span.Valid() {
			continue
		}
		s.rt.Tracing.Emit("envserver", r.end(t)...)
	}
}

// A recorder keeps the spans of one rollout. A nil one keeps nothing. It is safe for concurrent use.
type recorder struct {
	of   tracing.Rollout
	span tracing.Span // of the rollout

	mu      sync.Mutex
	counts  map[string]int
	spans   []tracing.Span
	leftOut int
}

type recorderKey struct{}

// under makes ctx one of the rollout.
func (r *recorder) under(ctx context.Context) context.Context {
	if r == nil {
		return ctx
	}
	return context.WithValue(tracing.With(ctx, r.span.Context), recorderKey{}, r)
}

func nothing(error, ...attribute.KeyValue) {}

// span begins a part of the rollout of ctx: the first, second… of its name.
func span(ctx context.Context, name string) (context.Context, func(error, ...attribute.KeyValue)) {
	r, _ := ctx.Value(recorderKey{}).(*recorder)
	if r == nil {
		return ctx, nothing
	}
	r.mu.Lock()
	n := r.counts[name]
	r.counts[name]++
	r.mu.Unlock()
	return r.begin(ctx, r.span.Under(name, n))
}

func (r *recorder) begin(ctx context.Context, s tracing.Span) (context.Context, func(error, ...attribute.KeyValue)) {
	s.Start = time.Now()
	return tracing.With(ctx, s.Context), func(err error, list ...attribute.KeyValue) {
		s.End, s.Attributes = time.Now(), append(s.Attributes, list...)
		if err != nil {
			s.Error = err.Error()
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		if len(r.spans) < maxSpans {
			r.spans = append(r.spans, s)
		} else {
			r.leftOut++
		}
	}
}

// A call is a question to a model, which may take several tries. A nil one is not traced.
type call struct {
	*recorder
	name   string
	number int
	tries  int
}

// newCall numbers a call of the rollout of ctx.
func newCall(ctx context.Context, name string) *call {
	r, _ := ctx.Value(recorderKey{}).(*recorder)
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.counts[name]++
	return &call{recorder: r, name: name, number: r.counts[name] - 1}
}

// try begins the next try.
func (c *call) try(ctx context.Context) (context.Context, func(error, ...attribute.KeyValue)) {
	if c == nil {
		return ctx, nothing
	}
	parent := tracing.From(ctx) // the rollout, or its teaching
	s := tracing.Span{Context: c.span.Child(c.name, c.number, c.tries), Parent: parent.Span, Name: c.name, Kind: tracing.Asker,
		Attributes: []attribute.KeyValue{tracing.Call.Int(c.number), tracing.Try.Int(c.tries)}}
	c.tries++
	return c.begin(ctx, s)
}

// end is all spans of the rollout, with what its trace says of it.
func (r *recorder) end(t *schemas.Trace) []tracing.Span {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.span.End = time.Now()
	tokens, turns := 0, 0
	for i := range t.Nodes {
		if tokens += len(t.Nodes[i].Mask); slices.Contains(t.Nodes[i].Mask, 1) {
			turns++
		}
	}
	list := append(r.span.Attributes, tracing.TaskIndex.Int64(t.TaskIndex), tracing.Turns.Int(turns), tracing.Tokens.Int(tokens),
		tracing.Stop.String(t.StopReason), tracing.Truncated.Bool(t.Truncated))
	if t.Eval != "" {
		list = append(list, tracing.Eval.String(t.Eval))
	}
	if t.Reward != nil {
		list = append(list, tracing.Reward.Float64(*t.Reward))
	}
	if t.PolicyStart != nil {
		list = append(list, tracing.Start.Int64(*t.PolicyStart))
	}
	if t.Policy != "" {
		list = append(list, tracing.Policy.String(t.Policy))
	}
	if r.leftOut > 0 {
		list = append(list, tracing.LeftOut.Int(r.leftOut))
	}
	if len(t.Errors) > 0 {
		r.span.Error = t.Errors[0].Message
		list = append(list, tracing.ErrorType.String(t.Errors[0].Type))
	}
	r.span.Attributes = list
	return append(slices.Clip(r.spans), r.span)
}
