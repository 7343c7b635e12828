package envserver

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// publishPause is the wait before traces that the blob store or the broker did not take are sent again.
const publishPause = time.Second

// What a stub keeps of the texts of a trace, in bytes, so that it always fits into a record.
const (
	stubTask  = 64 << 10
	stubText  = 4 << 10
	stubError = 4 // errors
)

// A publisher writes traces outside the shell's transactions, with an idempotent producer and acks=all.
type publisher struct {
	rt *pipeline.Runtime
	cl *kgo.Client
}

// publish returns when all traces are acknowledged, or when ctx ends; it waits for a blob store or broker that is away.
// A trace that no topic can hold is replaced by its stub. The only other error is one of missing rights: what a stub
// consists of was checked with the task.
func (p *publisher) publish(ctx context.Context, traces []*schemas.Trace) error {
	for {
		var failed []*schemas.Trace
		var last error
		var recs []*kgo.Record
		of := map[*kgo.Record]*schemas.Trace{}
		for _, t := range traces {
			r, err := p.encode(ctx, t)
			if err != nil {
				failed, last = append(failed, t), err
				continue
			}
			recs, of[r] = append(recs, r), t
		}
		for _, result := range p.produce(ctx, recs) {
			if result.Err == nil {
				continue
			}
			last = pipeline.Denied(result.Err, pipeline.WriteTopic(result.Record.Topic))
			if errors.Is(last, pipeline.ErrFatal) {
				return fmt.Errorf("write traces: %w", last)
			}
			failed = append(failed, smaller(of[result.Record], last))
		}
		if len(failed) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.rt.Log.Warn("traces are sent again", "traces", len(failed), "error", last)
		traces = failed
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(publishPause):
		}
	}
}

// produce waits for the broker's answers. What was sent once the client cannot take back, and where no broker is left it waits
// for the answer for ever: so an end of ctx gives up the wait, and the goroutine ends with the client.
func (p *publisher) produce(ctx context.Context, recs []*kgo.Record) kgo.ProduceResults {
	results := make(chan kgo.ProduceResults, 1)
	go func() { results <- p.cl.ProduceSync(ctx, recs...) }()
	select {
	case r := <-results:
		return r
	case <-ctx.Done():
	}
	var given kgo.ProduceResults
	for _, r := range recs {
		given = append(given, kgo.ProduceResult{Record: r, Err: context.Cause(ctx)})
	}
	return given
}

// encode makes the record of a trace, or of its stub where there is none. An error may pass.
func (p *publisher) encode(ctx context.Context, t *schemas.Trace) (*kgo.Record, error) {
	e := pipeline.Emission{Topic: pipeline.TopicTraces, Partition: pipeline.AutoPartition, Value: t}
	if t.Eval != "" {
		e.Topic = pipeline.TopicEvalTraces
	}
	r, err := p.rt.Encode(ctx, e)
	if err != nil && ctx.Err() == nil && !errors.Is(err, pipeline.ErrTransient) {
		p.rt.Log.Warn("a trace cannot be recorded", append(p.rt.LogOf(t.Env, t.Eval, t.GroupID, t.RolloutIndex), "error", err)...)
		e.Value = stub(t, err)
		r, err = p.rt.Encode(ctx, e)
	}
	return r, err
}

// smaller is what to send instead of a trace whose record was refused with err: its stub if the record was at fault.
func smaller(t *schemas.Trace, err error) *schemas.Trace {
	if errors.Is(err, kerr.MessageTooLarge) || errors.Is(err, kerr.RecordListTooLarge) || errors.Is(err, kerr.InvalidRecord) {
		return stub(t, err)
	}
	return t
}

// stub is what is left of a trace that cannot be recorded: whose it is, and why, as an error of its own type.
func stub(t *schemas.Trace, why error) *schemas.Trace {
	s := *t
	s.Nodes, s.Blobs, s.PolicyStart, s.PolicyEnd, s.EnvVersion = nil, nil, nil, nil, short(t.EnvVersion)
	if len(s.Task) > stubTask {
		s.Task = ""
	}
	s.Errors = nil
	for _, e := range t.Errors[:min(len(t.Errors), stubError)] {
		s.Errors = append(s.Errors, schemas.TraceError{Type: short(e.Type), Message: short(e.Message), Traceback: short(e.Traceback)})
	}
	fail(&s, &failure{errorUnrecordable, fmt.Errorf("the trace cannot be recorded: %s", short(why.Error()))})
	return &s
}

// recordable checks that the failure of a task can be recorded, whatever else cannot.
func (p *player) recordable(t *schemas.Task) error {
	trace := newTrace(t, indices(t)[0], "", p.info.Version, p.model, p.instance)
	b, err := schemas.Encode(stub(trace, errStopped))
	if err != nil {
		return fmt.Errorf("no trace of the task could be recorded: %w", err)
	}
	if len(b) > pipeline.MaxRecordBytes {
		return fmt.Errorf("no trace of the task could be recorded: %d bytes without anything played", len(b))
	}
	return nil
}

// short cuts a text, and takes from it what Avro's strings cannot hold.
func short(text string) string {
	return strings.ToValidUTF8(text[:min(len(text), stubText)], "")
}
