package pipeline

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// maxGap is how many records that are not wanted are read over rather than sought over.
const maxGap = 200

// restoreDeadline bounds every wait for more of what a start has to read.
const restoreDeadline = 30 * time.Second

// readOffsets reads records at exact offsets (in order) of one partition. It reads uncommitted ones too: that a
// committed offset or state record points at them is the proof that they count.
func (rt *Runtime) readOffsets(ctx context.Context, topic string, partition int32, offsets []int64) ([]*kgo.Record, error) {
	var recs []*kgo.Record
	for len(offsets) > 0 {
		n := 1
		for n < len(offsets) && offsets[n]-offsets[n-1] <= maxGap {
			n++
		}
		got, err := rt.readRun(ctx, topic, partition, offsets[:n])
		if err != nil {
			return nil, fmt.Errorf("read %s/%d offsets %d to %d again: %w", topic, partition, offsets[0], offsets[n-1], err)
		}
		recs, offsets = append(recs, got...), offsets[n:]
	}
	return recs, nil
}

func (rt *Runtime) readRun(ctx context.Context, topic string, partition int32, offsets []int64) ([]*kgo.Record, error) {
	name := rt.TopicName(topic)
	cl, err := rt.Client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{name: {partition: kgo.NewOffset().At(offsets[0])}}),
		kgo.FetchIsolationLevel(kgo.ReadUncommitted()), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var recs []*kgo.Record
	for {
		poll, cancel := context.WithTimeout(ctx, restoreDeadline)
		fetches := cl.PollRecords(poll, 0)
		cancel()
		if err := fetches.Err(); errors.Is(err, kerr.OffsetOutOfRange) {
			return nil, Fatal("records that this stage has not finished were deleted: restore the topic, or start a new run")
		} else if err != nil {
			return nil, err
		}
		for iter := fetches.RecordIter(); !iter.Done(); {
			r := iter.Next()
			want := offsets[len(recs)]
			if r.Offset < want {
				continue
			}
			if r.Offset > want {
				return nil, Fatal("%s/%d: the record at offset %d is gone", topic, partition, want)
			}
			recs = append(recs, r)
			if len(recs) == len(offsets) {
				return recs, nil
			}
		}
	}
}

// newestState finds the newest committed state record of a partition by reading the stage's state from the start, for
// a group that has forgotten its offsets. any says whether the stage has written any state at all.
func (rt *Runtime) newestState(ctx context.Context, stage, topic string, partition int32) (at int64, found, any bool, err error) {
	f, err := rt.Follow(TopicState)
	if err != nil {
		return 0, false, false, err
	}
	defer f.Close()
	recs, err := f.Load(ctx)
	if err != nil {
		return 0, false, false, err
	}
	key := stateKey(stage, topic, partition)
	for _, r := range recs {
		if r.Partition != statePartition(stage) {
			continue
		}
		any = true
		if r.Key == key {
			at, found = r.Offset, true
		}
	}
	return at, found, any, nil
}

// isEnd reports whether err only says that a context ended.
func isEnd(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
