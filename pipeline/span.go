package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// A Span is a part of a partition: the offsets from Start to below End.
type Span struct{ Start, End int64 }

// Spans are parts of topics, by the topic's name without the run's prefix and the partition.
type Spans map[string]map[int32]Span

// Spans looks up what topics hold now. committed leaves out what stands behind the first transaction that is open.
func (rt *Runtime) Spans(ctx context.Context, committed bool, topics ...string) (Spans, error) {
	cl, err := rt.Client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	last := adm.ListEndOffsets
	if committed {
		last = adm.ListCommittedOffsets
	}
	spans := Spans{}
	for _, topic := range topics {
		name := rt.TopicName(topic)
		starts, err := adm.ListStartOffsets(ctx, name)
		ends, err2 := last(ctx, name)
		if err := errors.Join(err, err2, starts.Error(), ends.Error()); err != nil {
			return nil, fmt.Errorf("look up where %s starts and ends: %w", name, Denied(err, ReadTopic(name)))
		}
		spans[topic] = map[int32]Span{}
		for p, start := range starts[name] {
			end, ok := ends.Lookup(name, p)
			if !ok { // a partition of which nothing is known is not an empty one
				return nil, fmt.Errorf("look up where %s/%d ends: no answer", name, p)
			}
			spans[topic][p] = Span{start.Offset, end.Offset}
		}
	}
	return spans, nil
}

// ReadSpans calls visit with every record of the spans, control records too, each partition in the order of its offsets,
// until visit fails. committed leaves out what aborted transactions have written; the spans are to be looked up alike. It
// fails where nothing more comes for half a minute.
func (rt *Runtime) ReadSpans(ctx context.Context, committed bool, spans Spans, visit func(*kgo.Record) error) error {
	isolation := kgo.ReadUncommitted()
	if committed {
		isolation = kgo.ReadCommitted()
	}
	left, from := map[string]map[int32]int64{}, map[string]map[int32]kgo.Offset{} // by full name; left is the ends
	for topic, partitions := range spans {
		name := rt.TopicName(topic)
		for p, s := range partitions {
			if s.Start >= s.End {
				continue
			}
			if left[name] == nil {
				left[name], from[name] = map[int32]int64{}, map[int32]kgo.Offset{}
			}
			left[name][p], from[name][p] = s.End, kgo.NewOffset().At(s.Start)
		}
	}
	cl, err := rt.Client(kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(isolation), kgo.KeepControlRecords(), kgo.ConsumeResetOffset(kgo.NoResetOffset()))
	if err != nil {
		return err
	}
	defer cl.Close()
	for len(left) > 0 {
		poll, cancel := context.WithTimeout(ctx, restoreDeadline)
		fetches := cl.PollRecords(poll, maxPoll)
		cancel()
		var failed error
		fetches.EachError(func(topic string, partition int32, err error) {
			switch {
			case ctx.Err() != nil:
				failed = ctx.Err()
			case isEnd(err):
				failed = fmt.Errorf("read %v to these ends: nothing has come for %v", left, restoreDeadline)
			default:
				failed = errors.Join(failed, fmt.Errorf("read %s/%d to its end: %w", topic, partition, Denied(err, ReadTopic(topic))))
			}
		})
		if failed != nil {
			return failed
		}
		for iter := fetches.RecordIter(); !iter.Done(); {
			r := iter.Next()
			end, open := left[r.Topic][r.Partition]
			if !open {
				continue
			}
			if r.Offset < end {
				if err := visit(r); err != nil {
					return err
				}
			}
			if r.Offset+1 >= end { // what comes behind it must not count as progress
				cl.RemoveConsumePartitions(map[string][]int32{r.Topic: {r.Partition}})
				if delete(left[r.Topic], r.Partition); len(left[r.Topic]) == 0 {
					delete(left, r.Topic)
				}
			}
		}
	}
	return nil
}
