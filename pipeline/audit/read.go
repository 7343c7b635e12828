package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
)

// A record is one committed record of a topic.
type record struct {
	pipeline.Record       // Value is nil where it cannot be decoded
	Err             error // why it cannot
	Raw             []byte
	Headers         map[string]string
	Injected        bool // no stage wrote it
}

// readTopic feeds every committed record of a topic to take, each partition in the order of its offsets. Only a compacted
// topic may have lost records.
func readTopic(ctx context.Context, cfg Config, topic string, take func(record)) error {
	rt := cfg.Runtime
	spans, err := rt.Spans(ctx, true, topic)
	if err != nil {
		return err
	}
	spec, _ := pipeline.TopicOf(topic)
	for p, s := range spans[topic] {
		if s.Start > 0 && !spec.Compacted {
			return fmt.Errorf("%s/%d starts at offset %d: the records before it were deleted, and what follows from them cannot be checked", topic, p, s.Start)
		}
	}
	return rt.ReadSpans(ctx, true, spans, func(r *kgo.Record) error {
		if r.Attrs.IsControl() {
			return nil
		}
		rec := decode(ctx, cfg, r)
		if ctx.Err() != nil || errors.Is(rec.Err, pipeline.ErrTransient) { // that says nothing about the record
			return fmt.Errorf("read %v: %w", rec.Ref, errors.Join(ctx.Err(), rec.Err))
		}
		take(rec)
		return nil
	})
}

func decode(ctx context.Context, cfg Config, r *kgo.Record) record {
	rec := record{Raw: r.Value, Headers: map[string]string{}}
	rec.Record, rec.Err = cfg.Runtime.Decode(ctx, r)
	for _, h := range slices.Backward(r.Headers) { // of equal ones the first counts: dlq adds a stage's before the record's own
		rec.Headers[h.Key] = string(h.Value)
	}
	rec.Injected = cfg.Injected != nil && cfg.Injected(r)
	return rec
}
