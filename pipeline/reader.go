package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/schemas"
)

// maxGap is how many records that are not wanted are read over rather than sought over.
const maxGap = 200

// restoreDeadline bounds every wait for more of what a start has to read.
const restoreDeadline = 30 * time.Second

// readOffsets reads records at exact offsets (in order) of one partition. It reads uncommitted ones too: that a
// committed offset or state record points at them is the proof that they count.
func (rt *Runtime) readOffsets(ctx context.Context, topic string, partition int32, offsets []int64) ([]*kgo.Record, error) {
	if len(offsets) == 0 {
		return nil, nil
	}
	name := rt.TopicName(topic)
	cl, err := rt.Client(
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{name: {partition: kgo.NewOffset().At(offsets[0])}}),
		kgo.FetchIsolationLevel(kgo.ReadUncommitted()), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	var recs []*kgo.Record
	for len(offsets) > 0 {
		n := 1
		for n < len(offsets) && offsets[n]-offsets[n-1] <= maxGap {
			n++
		}
		if len(recs) > 0 {
			cl.SetOffsets(map[string]map[int32]kgo.EpochOffset{name: {partition: {Epoch: -1, Offset: offsets[0]}}})
		}
		got, err := readRun(ctx, cl, offsets[:n])
		if err != nil {
			return nil, fmt.Errorf("read %s/%d offsets %d to %d again: %w", topic, partition, offsets[0], offsets[n-1], Denied(err, ReadTopic(name)))
		}
		recs, offsets = append(recs, got...), offsets[n:]
	}
	return recs, nil
}

// readRun reads the records at offsets, the first of which is the client's position.
func readRun(ctx context.Context, cl *kgo.Client, offsets []int64) ([]*kgo.Record, error) {
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
				return nil, Fatal("the record at offset %d is gone", want)
			}
			recs = append(recs, r)
			if len(recs) == len(offsets) {
				return recs, nil
			}
		}
	}
}

// newestState finds the newest committed state record of a partition by reading the stage's state from the start, for
// a group that has forgotten its offsets. It goes by the markers of transactions, so that an open one of another instance
// hides nothing and holds nothing up. any says whether the stage has begun to write state at all: then outputs without
// committed state are those of transactions that were aborted, or are not over yet.
func (rt *Runtime) newestState(ctx context.Context, stage, topic string, partition int32) (at int64, found, any bool, err error) {
	key, open := stateKey(stage, topic, partition), map[int64]int64{} // records of our key, by producer
	own, err := rt.stateSpans(ctx, false, stage)
	if err != nil {
		return 0, false, false, err
	}
	err = rt.ReadSpans(ctx, false, own, func(r *kgo.Record) error {
		any = true
		switch committed, end := endOfTransaction(r); {
		case !end && string(r.Key) == key:
			open[r.ProducerID] = r.Offset
		case end:
			o, ok := open[r.ProducerID]
			delete(open, r.ProducerID)
			if ok && committed && (!found || o > at) {
				at, found = o, true
			}
		}
		return nil
	})
	return at, found, any, err
}

// stateSpans are the states of a stage.
func (rt *Runtime) stateSpans(ctx context.Context, committed bool, stage string) (Spans, error) {
	spans, err := rt.Spans(ctx, committed, TopicState)
	if err != nil {
		return nil, err
	}
	p := statePartition(stage)
	span, ok := spans[TopicState][p]
	if !ok {
		return nil, fmt.Errorf("look up the state of the stage %s: no answer for partition %d of %s", stage, p, rt.TopicName(TopicState))
	}
	return Spans{TopicState: {p: span}}, nil
}

// errEnough ends a reading of which no more is wanted.
var errEnough = errors.New("no more is wanted")

// States calls visit with the committed state records of a stage that are left, in order, until it wants no more. What
// cannot be read is passed over, but for records of a schema that a newer version of prl may know.
func (rt *Runtime) States(ctx context.Context, stage string, visit func(*schemas.StageState) (more bool, err error)) error {
	own, err := rt.stateSpans(ctx, true, stage)
	if err != nil {
		return err
	}
	err = rt.ReadSpans(ctx, true, own, func(r *kgo.Record) error {
		if r.Attrs.IsControl() {
			return nil
		}
		v, err := rt.DecodeValue(ctx, r.Value)
		if errors.Is(err, ErrTransient) || errors.Is(err, schemas.ErrUnknownSchema) {
			return fmt.Errorf("read the state of the stage %s: %w", stage, err)
		}
		s, ok := v.(*schemas.StageState)
		if err != nil || !ok || s.Stage != stage {
			return nil
		}
		more, err := visit(s)
		if err == nil && !more {
			err = errEnough
		}
		return err
	})
	if errors.Is(err, errEnough) {
		return nil
	}
	return err
}

// endOfTransaction reads a transaction's marker; end is false for a record of any other kind.
func endOfTransaction(r *kgo.Record) (committed, end bool) {
	if !r.Attrs.IsControl() || len(r.Key) < 4 {
		return false, false
	}
	kind := kmsg.ControlRecordKeyType(binary.BigEndian.Uint16(r.Key[2:]))
	return kind == kmsg.ControlRecordKeyTypeCommit, kind == kmsg.ControlRecordKeyTypeCommit || kind == kmsg.ControlRecordKeyTypeAbort
}

// isEnd reports whether err only says that a context ended.
func isEnd(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)
}
