package envserver

import (
	"context"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// publishPause is the wait before traces that the broker did not take are sent again.
const publishPause = time.Second

// A publisher writes traces outside the shell's transactions, with an idempotent producer and acks=all.
type publisher struct {
	rt *pipeline.Runtime
	cl *kgo.Client
}

// publish returns when all traces are acknowledged, or when ctx ends. A trace that cannot be recorded is replaced by one
// that says so.
func (p *publisher) publish(ctx context.Context, traces []*schemas.Trace) error {
	var recs []*kgo.Record
	for _, t := range traces {
		r, err := p.encode(ctx, t)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			p.rt.Log.Error("a trace cannot be written", "env", t.Env, "group", t.GroupID, "rollout", t.RolloutIndex, "error", err)
			return err
		}
		recs = append(recs, r)
	}
	for {
		var failed []*kgo.Record
		var last error
		for _, r := range p.cl.ProduceSync(ctx, recs...) {
			if r.Err != nil {
				failed, last = append(failed, r.Record), r.Err
			}
		}
		if len(failed) == 0 {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		p.rt.Log.Warn("traces are sent again", "traces", len(failed), "error", last)
		recs = failed
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(publishPause):
		}
	}
}

func (p *publisher) encode(ctx context.Context, t *schemas.Trace) (*kgo.Record, error) {
	topic := pipeline.TopicTraces
	if t.Eval != "" {
		topic = pipeline.TopicEvalTraces
	}
	r, err := p.rt.Encode(ctx, pipeline.Emission{Topic: topic, Partition: pipeline.AutoPartition, Value: t})
	if err == nil || ctx.Err() != nil {
		return r, err
	}
	bare := *t
	bare.Nodes, bare.Blobs, bare.PolicyStart, bare.PolicyEnd = nil, nil, nil, nil
	fail(&bare, fmt.Errorf("the trace cannot be recorded: %w", err))
	return p.rt.Encode(ctx, pipeline.Emission{Topic: topic, Partition: pipeline.AutoPartition, Value: &bare})
}
