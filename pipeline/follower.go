package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Follower reads whole topics from the start, committed records only, outside any consumer group.
type Follower struct {
	rt       *Runtime
	cl       *kgo.Client
	topics   []string
	position map[string]map[int32]int64 // by full topic name
}

// Follow starts reading topics (names without the run's prefix), which must exist.
func (rt *Runtime) Follow(topics ...string) (*Follower, error) {
	f := &Follower{rt: rt, position: map[string]map[int32]int64{}}
	start := map[string]map[int32]kgo.Offset{}
	for _, t := range topics {
		name := rt.TopicName(t)
		f.topics = append(f.topics, name)
		f.position[name], start[name] = map[int32]int64{}, map[int32]kgo.Offset{}
		for p := range rt.Partitions(t) {
			start[name][p] = kgo.NewOffset().AtStart()
		}
	}
	cl, err := rt.Client(kgo.ConsumePartitions(start), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	f.cl = cl
	return f, nil
}

// Close ends the following.
func (f *Follower) Close() { f.cl.Close() }

// Load reads everything that was committed when it was called. It gives up where nothing more comes for a while.
func (f *Follower) Load(ctx context.Context) ([]Record, error) {
	ends, err := kadm.NewClient(f.cl).ListCommittedOffsets(ctx, f.topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list the ends of %v: %w", f.topics, err)
	}
	var all []Record
	for !f.reached(ends) {
		poll, cancel := context.WithTimeout(ctx, restoreDeadline)
		recs, err := f.Poll(poll)
		waited := poll.Err()
		cancel()
		if err != nil {
			return nil, err
		}
		if waited != nil && len(recs) == 0 {
			return nil, fmt.Errorf("read %v to their ends: %w", f.topics, waited)
		}
		all = append(all, recs...)
	}
	return all, nil
}

func (f *Follower) reached(ends kadm.ListedOffsets) bool {
	done := true
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > f.position[o.Topic][o.Partition] {
			done = false
		}
	})
	return done
}

// Poll waits for more records until ctx ends, which is no error. With a nil ctx it returns what is there already.
func (f *Follower) Poll(ctx context.Context) ([]Record, error) {
	fetches := f.cl.PollRecords(ctx, 1000)
	for _, e := range fetches.Errors() {
		if errors.Is(e.Err, context.Canceled) || errors.Is(e.Err, context.DeadlineExceeded) {
			continue
		}
		if errors.Is(e.Err, kerr.OffsetOutOfRange) {
			return nil, Fatal("%s/%d: records that this stage needs were deleted", e.Topic, e.Partition)
		}
		return nil, fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, e.Err)
	}
	var recs []Record
	for iter := fetches.RecordIter(); !iter.Done(); {
		r := iter.Next()
		f.position[r.Topic][r.Partition] = r.Offset + 1
		if r.Attrs.IsControl() {
			continue
		}
		rec, err := f.rt.Decode(context.Background(), r)
		if errors.Is(err, errBlobStore) {
			return nil, fmt.Errorf("read %v: %w", rec.Ref, err)
		}
		if err != nil {
			f.rt.Log.Warn("a record cannot be read and is passed over", "record", rec.Ref.String(), "error", err)
			continue
		}
		recs = append(recs, rec)
	}
	return recs, nil
}

// table keeps what tables have told, so that a core built later hears it too.
type table struct {
	follower *Follower
	records  []Record
	latest   map[string]int // index of the newest record of a compacted topic's key
}

func newTable(ctx context.Context, rt *Runtime, topics []string) (*table, error) {
	if len(topics) == 0 {
		return nil, nil
	}
	f, err := rt.Follow(topics...)
	if err != nil {
		return nil, err
	}
	t := &table{follower: f, latest: map[string]int{}}
	recs, err := f.Load(ctx)
	if err != nil {
		f.Close()
		return nil, err
	}
	t.keep(recs)
	return t, nil
}

func (t *table) keep(recs []Record) {
	for _, r := range recs {
		topic, _ := TopicOf(r.Topic)
		key := r.Topic + "\x00" + r.Key
		if i, ok := t.latest[key]; ok && topic.Compacted {
			t.records[i] = r
			continue
		}
		t.latest[key] = len(t.records)
		t.records = append(t.records, r)
	}
}

// poll returns what came since, without waiting.
func (t *table) poll() ([]Record, error) {
	if t == nil {
		return nil, nil
	}
	//lint:ignore SA1012 kgo documents nil as: return what is buffered
	recs, err := t.follower.Poll(nil)
	t.keep(recs)
	return recs, err
}

func (t *table) close() {
	if t != nil {
		t.follower.Close()
	}
}
