package pipeline

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Follower reads topics, committed records only, outside any consumer group.
type Follower struct {
	rt       *Runtime
	cl       *kgo.Client
	topics   []string
	position map[string]map[int32]int64 // by full topic name
	raw      []*kgo.Record              // polled and not returned yet
}

// Follow starts reading topics (names without the run's prefix), which must exist.
func (rt *Runtime) Follow(topics ...string) (*Follower, error) {
	return rt.followFrom(rt.starts(topics))
}

// FollowSince is Follow from the first records on whose time stamps are not before at. These are their writers' clocks, so
// it is for readers to whom a record more or less makes no difference.
func (rt *Runtime) FollowSince(ctx context.Context, at time.Time, topics ...string) (*Follower, error) {
	starts, err := rt.startsSince(ctx, at, topics)
	if err != nil {
		return nil, err
	}
	return rt.followFrom(starts)
}

// FollowFrom is Follow from given positions, by topic and partition; partitions without one are read from their start. Where
// the records at a position were deleted, Poll says so.
func (rt *Runtime) FollowFrom(at map[string]map[int32]int64, topics ...string) (*Follower, error) {
	starts := rt.starts(topics)
	for topic, parts := range at {
		for p, position := range parts {
			if _, there := starts[rt.TopicName(topic)][p]; there {
				starts[rt.TopicName(topic)][p] = kgo.NewOffset().At(position)
			}
		}
	}
	return rt.followFrom(starts)
}

// starts is where the partitions of topics begin, by full topic name.
func (rt *Runtime) starts(topics []string) map[string]map[int32]kgo.Offset {
	starts := map[string]map[int32]kgo.Offset{}
	for _, t := range topics {
		name := rt.TopicName(t)
		starts[name] = map[int32]kgo.Offset{}
		for p := range rt.Partitions(t) {
			starts[name][p] = kgo.NewOffset().AtStart()
		}
	}
	return starts
}

func (rt *Runtime) startsSince(ctx context.Context, at time.Time, topics []string) (map[string]map[int32]kgo.Offset, error) {
	return rt.listed(ctx, topics, func(ctx context.Context, adm *kadm.Client, names ...string) (kadm.ListedOffsets, error) {
		return adm.ListOffsetsAfterMilli(ctx, at.UnixMilli(), names...)
	})
}

// firsts are starts as numbers.
func (rt *Runtime) firsts(ctx context.Context, topics []string) (map[string]map[int32]kgo.Offset, error) {
	return rt.listed(ctx, topics, func(ctx context.Context, adm *kadm.Client, names ...string) (kadm.ListedOffsets, error) {
		return adm.ListStartOffsets(ctx, names...)
	})
}

// listed asks the brokers where to start.
func (rt *Runtime) listed(ctx context.Context, topics []string, list func(context.Context, *kadm.Client, ...string) (kadm.ListedOffsets, error)) (map[string]map[int32]kgo.Offset, error) {
	ctx, cancel := context.WithTimeout(ctx, requestDeadline)
	defer cancel()
	cl, err := rt.Client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	starts := rt.starts(topics)
	names := slices.Sorted(maps.Keys(starts))
	first, err := list(ctx, kadm.NewClient(cl), names...)
	if err == nil {
		err = offsetsError(first)
	}
	if err != nil {
		return nil, fmt.Errorf("list where to begin in %v: %w", names, Denied(err))
	}
	for name, parts := range starts {
		for p := range parts {
			o, ok := first.Lookup(name, p)
			if !ok {
				return nil, fmt.Errorf("list where to begin in %s/%d: no answer", name, p)
			}
			parts[p] = kgo.NewOffset().At(o.Offset)
		}
	}
	return starts, nil
}

// followWait is how long the broker keeps the fetch of one partition that has nothing new. What comes is sent at once, and a fetch that
// waits is dropped at the end; so it is only how often ten thousand who look on ask for nothing. With several partitions the client may
// ask for some before it has taken up all, and those wait: there it is what every client has.
const followWait = 5 * time.Second

func (rt *Runtime) followFrom(start map[string]map[int32]kgo.Offset) (*Follower, error) {
	f := &Follower{rt: rt, position: map[string]map[int32]int64{}}
	for name, parts := range start {
		f.topics = append(f.topics, name)
		f.position[name] = map[int32]int64{}
		for p, o := range parts {
			f.position[name][p] = max(o.EpochOffset().Offset, 0)
		}
	}
	opts := []kgo.Opt{kgo.ConsumePartitions(start), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords()}
	if one := slices.Collect(maps.Values(start)); len(one) == 1 && len(one[0]) == 1 {
		opts = append(opts, kgo.FetchMaxWait(followWait))
	}
	cl, err := rt.Client(opts...)
	if err != nil {
		return nil, err
	}
	f.cl = cl
	return f, nil
}

// Close ends the following.
func (f *Follower) Close() { f.cl.Close() }

// Load reads everything that was committed when it was called. It gives up where nothing more comes for a while. With an
// error it returns what it has read until then, and Poll goes on behind that.
func (f *Follower) Load(ctx context.Context) (all []Record, err error) {
	err = f.LoadStamped(ctx, func(recs []Stamped) { all = append(all, unstamped(recs)...) })
	return all, err
}

// LoadStamped is Load that gives the records as they come.
func (f *Follower) LoadStamped(ctx context.Context, visit func([]Stamped)) error {
	ends, err := kadm.NewClient(f.cl).ListCommittedOffsets(ctx, f.topics...)
	if err == nil {
		err = offsetsError(ends)
	}
	if err != nil {
		return fmt.Errorf("list the ends of %v: %w", f.topics, Denied(err))
	}
	for !f.reached(ends) {
		poll, cancel := context.WithTimeout(ctx, restoreDeadline)
		recs, err := f.PollStamped(poll)
		waited := poll.Err()
		cancel()
		if err != nil {
			return err
		}
		if waited != nil && len(recs) == 0 {
			return fmt.Errorf("read %v to their ends: %w", f.topics, waited)
		}
		visit(recs)
	}
	return nil
}

func (f *Follower) reached(ends kadm.ListedOffsets) bool {
	done := true
	ends.Each(func(o kadm.ListedOffset) {
		if at, followed := f.position[o.Topic][o.Partition]; followed && o.Offset > at {
			done = false
		}
	})
	return done
}

// Poll waits for more records until ctx ends, which is no error. With a nil ctx it returns what is there already. After
// ErrTransient the next Poll returns the same records.
func (f *Follower) Poll(ctx context.Context) ([]Record, error) {
	recs, err := f.PollStamped(ctx)
	return unstamped(recs), err
}

// A Stamped is a record with what those who only look on may know besides.
type Stamped struct {
	Record
	Time time.Time // by its writer's clock
	// Refused says of a record of dlq, which has no Value, what stage refused it and why.
	Refused string
}

func unstamped(list []Stamped) []Record {
	var recs []Record
	for _, s := range list {
		if s.Value != nil {
			recs = append(recs, s.Record)
		}
	}
	return recs
}

// PollStamped is Poll for those who look on: with the times of the records, and with those of dlq as they are.
func (f *Follower) PollStamped(ctx context.Context) ([]Stamped, error) {
	if len(f.raw) == 0 {
		if err := f.fetch(ctx); err != nil {
			return nil, err
		}
	}
	var recs []Stamped
	for _, r := range f.raw {
		if r.Attrs.IsControl() {
			continue
		}
		if f.rt.BaseName(r.Topic) == TopicDLQ {
			recs = append(recs, Stamped{f.rt.coordinates(r), r.Timestamp, refusedBy(r)})
			continue
		}
		rec, err := f.rt.Decode(context.Background(), r)
		if errors.Is(err, ErrTransient) {
			return nil, fmt.Errorf("read %v: %w", rec.Ref, err)
		}
		if err != nil {
			f.rt.Log.Warn("a record cannot be read and is passed over", "record", rec.Ref.String(), "error", err)
			continue
		}
		recs = append(recs, Stamped{rec, r.Timestamp, ""})
	}
	for _, r := range f.raw {
		f.position[r.Topic][r.Partition] = r.Offset + 1
	}
	f.raw = nil
	return recs, nil
}

func (f *Follower) fetch(ctx context.Context) error {
	fetches := f.cl.PollRecords(ctx, 1000)
	f.raw = fetches.Records() // those that come with an error, too: the client does not give them again
	for _, e := range fetches.Errors() {
		if errors.Is(e.Err, context.Canceled) || errors.Is(e.Err, context.DeadlineExceeded) {
			continue
		}
		if errors.Is(e.Err, kerr.OffsetOutOfRange) {
			return Fatal("%s/%d: records that this stage needs were deleted", e.Topic, e.Partition)
		}
		return fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, Denied(e.Err, ReadTopic(e.Topic)))
	}
	return nil
}

// stateSince is how far back a table of states goes. It holds those of the environment servers alone, which repeat theirs
// every few seconds, and only says where tasks go best: so a start need not read what has piled up since the last
// compaction, nor the much larger states of others, and a clock that is wrong costs a few seconds of balance.
const stateSince = time.Minute

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
	starts := rt.starts(topics)
	if slices.Contains(topics, TopicState) {
		since, err := rt.startsSince(ctx, time.Now().Add(-stateSince), []string{TopicState})
		if err == nil {
			// All positions are numbers then: while the client looked some up, it would ask for the states alone, at whose end
			// the broker waits for more.
			starts, err = rt.firsts(ctx, topics)
		}
		if err != nil {
			return nil, err
		}
		name, servers := rt.TopicName(TopicState), statePartition("envserver")
		starts[name] = map[int32]kgo.Offset{servers: since[name][servers]}
	}
	f, err := rt.followFrom(starts)
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
