package replay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// A Source is what a run has recorded. Nothing is ever written to it.
type Source interface {
	// Spans is the part of each partition of a topic that is read. It is fixed when the source is opened: what a run
	// that goes on adds is not seen.
	Spans(topic string) map[int32]pipeline.Span
	// Read gives the records of a partition in the order of their offsets; the first error ends it.
	Read(ctx context.Context, topic string, partition int32) iter.Seq2[Record, error]
}

// A Record is one of a source, not decoded yet.
type Record struct {
	pipeline.Ref
	Key    string // empty where the source does not know it, as for a record that cannot be read
	Time   time.Time
	decode func(context.Context) (schemas.Record, error)
}

// Decode gives the record's value, tensors of the blob store included. Unless it is pipeline.ErrTransient, or ctx has
// ended, an error says that the record is unreadable.
func (r Record) Decode(ctx context.Context) (schemas.Record, error) { return r.decode(ctx) }

// decode is Decode for a record that must be of one kind. ok is false where it is unreadable.
func decode[T schemas.Record](ctx context.Context, r Record) (v T, ok bool, err error) {
	value, err := r.Decode(ctx)
	if errors.Is(err, pipeline.ErrTransient) || ctx.Err() != nil {
		return v, false, fmt.Errorf("read %v: %w", r.Ref, errors.Join(err, ctx.Err()))
	}
	v, ok = value.(T)
	return v, ok && err == nil, nil
}

// topicsRead are those that a replay can read. A record leads to those of the topics before its own, so the ends of a run that
// goes on are looked up in this order: what is seen of a topic has its cause in what is seen of the later ones.
var topicsRead = []string{
	pipeline.TopicPolicies, pipeline.TopicBatches, pipeline.TopicOutcomes, pipeline.TopicSamples,
	pipeline.TopicTraces, pipeline.TopicEvalTraces,
}

// inOrder are the topics of topicsRead, in its order, that are among some.
func inOrder(topics []string) (read []string) {
	for _, topic := range topicsRead {
		if slices.Contains(topics, topic) {
			read = append(read, topic)
		}
	}
	return read
}

type topicSource struct {
	rt    *pipeline.Runtime
	spans pipeline.Spans
}

// FromTopics reads the committed records of some of a run's topics. It is an error where records of these have been
// deleted.
func FromTopics(ctx context.Context, rt *pipeline.Runtime, topics ...string) (Source, error) {
	topics = inOrder(topics)
	spans, err := rt.Spans(ctx, true, topics...)
	if err != nil {
		return nil, fmt.Errorf("replay run %s: %w", rt.Run.Name, err)
	}
	for _, topic := range topics {
		for p, s := range spans[topic] {
			if s.Start > 0 {
				return nil, fmt.Errorf("replay run %s: %s/%d starts at offset %d, the records before were deleted; the Parquet files may still have them (--source parquet)", rt.Run.Name, topic, p, s.Start)
			}
		}
	}
	return topicSource{rt, spans}, nil
}

func (s topicSource) Spans(topic string) map[int32]pipeline.Span { return s.spans[topic] }

var errEnough = errors.New("no more is wanted")

func (s topicSource) Read(ctx context.Context, topic string, partition int32) iter.Seq2[Record, error] {
	spans := pipeline.Spans{topic: {partition: s.spans[topic][partition]}}
	return func(yield func(Record, error) bool) {
		err := s.rt.ReadSpans(ctx, true, spans, func(r *kgo.Record) error {
			if r.Attrs.IsControl() {
				return nil
			}
			rec := Record{Ref: pipeline.Ref{Topic: topic, Partition: partition, Offset: r.Offset}, Key: string(r.Key), Time: r.Timestamp}
			rec.decode = func(ctx context.Context) (schemas.Record, error) {
				decoded, err := s.rt.Decode(ctx, r)
				return decoded.Value, err
			}
			if !yield(rec, nil) {
				return errEnough
			}
			return nil
		})
		if err != nil && !errors.Is(err, errEnough) {
			yield(Record{}, err)
		}
	}
}

type fileSource struct {
	rt     *pipeline.Runtime
	topics map[string]*sink.Files
}

// FromParquet reads the files of some topics that the run's sink has written below dir, and the run's blob store.
func FromParquet(rt *pipeline.Runtime, dir string, topics ...string) (Source, error) {
	s := fileSource{rt, map[string]*sink.Files{}}
	for _, topic := range inOrder(topics) {
		f, err := sink.OpenFiles(dir, topic)
		if err != nil {
			return nil, fmt.Errorf("replay run %s: %w", rt.Run.Name, err)
		}
		s.topics[topic] = f
	}
	return s, nil
}

func (s fileSource) Spans(topic string) map[int32]pipeline.Span {
	if f, ok := s.topics[topic]; ok {
		return f.Spans
	}
	return nil
}

func (s fileSource) Read(ctx context.Context, topic string, partition int32) iter.Seq2[Record, error] {
	spec, _ := pipeline.TopicOf(topic)
	return func(yield func(Record, error) bool) {
		for stored, err := range s.topics[topic].Read(ctx, partition) {
			if err != nil {
				yield(Record{}, err)
				return
			}
			rec := Record{Ref: pipeline.Ref{Topic: topic, Partition: partition, Offset: stored.Offset}, Time: stored.Time}
			if stored.Value != nil {
				rec.Key = spec.Key(stored.Value)
			}
			rec.decode = func(ctx context.Context) (schemas.Record, error) {
				if stored.Err != nil {
					return nil, stored.Err
				}
				return stored.Value, s.rt.Redeem(ctx, stored.Value)
			}
			if !yield(rec, nil) {
				return
			}
		}
	}
}
