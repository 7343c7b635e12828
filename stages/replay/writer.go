package replay

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
)

// A Writer writes what a replay makes to the topics of a run of its own. What is made is the same every time, so a replay
// that was stopped is simply done again: what is there already is held against it and not written twice, and each
// partition has, at any time, the first of its records and no others.
type Writer struct {
	rt     *pipeline.Runtime
	cl     *kgo.Client
	topics []string
	there  map[slot][][32]byte // SHA-256 of the values of records that were there at the start, in order
	made   map[slot]int        // records
	batch  []*kgo.Record
	bytes  int
	// Written and Found count the records that were written, and that were there already.
	Written, Found int64
}

// slot is a partition of a topic of a run, by its full name.
type slot struct {
	topic     string
	partition int32
}

func slotOf(r *kgo.Record) slot { return slot{r.Topic, r.Partition} }

// batchRecords and batchBytes bound what is written at once.
const (
	batchRecords = 1000
	batchBytes   = 16 << 20
)

// OpenWriter looks up what the topics, which exist, hold already. A writer that was opened before is fenced first: it
// writes nothing any more. No stage may write to the topics.
func OpenWriter(ctx context.Context, rt *pipeline.Runtime, topics ...string) (w *Writer, err error) {
	w = &Writer{rt: rt, topics: topics, there: map[slot][][32]byte{}, made: map[slot]int{}}
	w.cl, err = rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.TransactionalID(rt.TopicName("replay")), kgo.TransactionTimeout(time.Minute))
	if err != nil {
		return nil, err
	}
	if err := w.look(ctx); err != nil {
		w.cl.Close()
		return nil, fmt.Errorf("look at what run %s has: %w", rt.Run.Name, err)
	}
	return w, nil
}

func (w *Writer) look(ctx context.Context) error {
	if _, _, err := w.cl.ProducerID(ctx); err != nil {
		return err
	}
	spans, err := w.rt.Spans(ctx, true, w.topics...)
	if err != nil {
		return err
	}
	return w.rt.ReadSpans(ctx, true, spans, func(r *kgo.Record) error {
		if !r.Attrs.IsControl() {
			w.there[slotOf(r)] = append(w.there[slotOf(r)], sha256.Sum256(r.Value))
		}
		return nil
	})
}

// Write takes the next records; those of other topics are left out.
func (w *Writer) Write(ctx context.Context, made []pipeline.Emission) error {
	for _, e := range made {
		if !slices.Contains(w.topics, e.Topic) {
			continue
		}
		r, err := w.rt.Encode(ctx, e)
		if err != nil {
			return fmt.Errorf("write to run %s: %w", w.rt.Run.Name, err)
		}
		at := slotOf(r)
		n := w.made[at]
		w.made[at]++
		if n < len(w.there[at]) {
			if w.there[at][n] != sha256.Sum256(r.Value) {
				return fmt.Errorf("write to run %s: record %d of %s/%d is there and is another one: it was made of something else, or with other settings; choose another name (--into)", w.rt.Run.Name, n, r.Topic, r.Partition)
			}
			w.Found++
			continue
		}
		w.batch, w.bytes = append(w.batch, r), w.bytes+len(r.Value)
	}
	if len(w.batch) >= batchRecords || w.bytes >= batchBytes {
		return w.flush(ctx)
	}
	return nil
}

func (w *Writer) flush(ctx context.Context) error {
	if len(w.batch) == 0 {
		return nil
	}
	if err := w.commit(ctx); err != nil {
		return fmt.Errorf("write to run %s: %w", w.rt.Run.Name, err)
	}
	w.Written += int64(len(w.batch))
	w.batch, w.bytes = slices.Delete(w.batch, 0, len(w.batch)), 0
	return nil
}

func (w *Writer) commit(ctx context.Context) error {
	if err := w.cl.BeginTransaction(); err != nil {
		return err
	}
	if err := pipeline.ProduceAll(ctx, w.cl, w.batch); err != nil {
		return errors.Join(err, w.cl.EndTransaction(context.WithoutCancel(ctx), kgo.TryAbort))
	}
	return w.cl.EndTransaction(ctx, kgo.TryCommit)
}

// End writes the last records. It is an error where the run has more than was made.
func (w *Writer) End(ctx context.Context) error {
	if err := w.flush(ctx); err != nil {
		return err
	}
	for at, there := range w.there {
		if len(there) > w.made[at] {
			return fmt.Errorf("run %s has %d records in %s/%d, and %d were made: the others are of something else; choose another name (--into)", w.rt.Run.Name, len(there), at.topic, at.partition, w.made[at])
		}
	}
	return nil
}

// Close releases the writer; what End has not written is lost.
func (w *Writer) Close() { w.cl.Close() }
