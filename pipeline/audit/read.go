package audit

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
)

// patience bounds the wait for more of a topic that has more.
const patience = 30 * time.Second

// A record is one committed record of a topic.
type record struct {
	pipeline.Record       // Value is nil where it cannot be decoded
	Err             error // why it cannot
	Raw             []byte
	Headers         map[string]string
	Injected        bool // no stage wrote it
}

// readTopic feeds every committed record of a topic to take, each partition in the order of its offsets.
func readTopic(ctx context.Context, cfg Config, topic string, take func(record)) error {
	rt := cfg.Runtime
	name := rt.TopicName(topic)
	start := map[int32]kgo.Offset{}
	for p := range rt.Partitions(topic) {
		start[p] = kgo.NewOffset().AtStart()
	}
	cl, err := rt.Client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{name: start}),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return err
	}
	defer cl.Close()
	next, ends, err := span(ctx, kadm.NewClient(cl), topic, name)
	if err != nil {
		return err
	}
	for behind(next, ends) {
		poll, cancel := context.WithTimeout(ctx, patience)
		fetches := cl.PollRecords(poll, 1000)
		cancel()
		if err := fetches.Err(); err != nil {
			return fmt.Errorf("read %s to its end: %w", topic, pipeline.Denied(err, pipeline.ReadTopic(name)))
		}
		for iter := fetches.RecordIter(); !iter.Done(); {
			r := iter.Next()
			if next[r.Partition] = r.Offset + 1; r.Attrs.IsControl() || r.Offset >= ends[r.Partition] {
				continue
			}
			rec := decode(ctx, cfg, r)
			if ctx.Err() != nil || errors.Is(rec.Err, pipeline.ErrTransient) { // that says nothing about the record
				return fmt.Errorf("read %v: %w", rec.Ref, errors.Join(ctx.Err(), rec.Err))
			}
			take(rec)
		}
	}
	return nil
}

// span is where the partitions of a topic start and end. Only a compacted topic may have lost records.
func span(ctx context.Context, adm *kadm.Client, topic, name string) (starts, ends map[int32]int64, err error) {
	first, err := adm.ListStartOffsets(ctx, name)
	last, err2 := adm.ListCommittedOffsets(ctx, name)
	if err := errors.Join(err, err2, first.Error(), last.Error()); err != nil {
		return nil, nil, fmt.Errorf("list the offsets of %s: %w", topic, pipeline.Denied(err, pipeline.ReadTopic(name)))
	}
	starts, ends = map[int32]int64{}, map[int32]int64{}
	first.Each(func(o kadm.ListedOffset) { starts[o.Partition] = o.Offset })
	last.Each(func(o kadm.ListedOffset) { ends[o.Partition] = o.Offset })
	spec, _ := pipeline.TopicOf(topic)
	for p, o := range starts {
		if o > 0 && !spec.Compacted {
			return nil, nil, fmt.Errorf("%s/%d starts at offset %d: the records before it were deleted, and what follows from them cannot be checked", topic, p, o)
		}
	}
	return starts, ends, nil
}

func behind(next, ends map[int32]int64) bool {
	for p, end := range ends {
		if next[p] < end {
			return true
		}
	}
	return false
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
