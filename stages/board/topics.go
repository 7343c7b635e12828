package board

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
)

// A reader reads the topics from their start. It uses Kafka directly, for the time of a record is only there.
type reader struct {
	rt       *pipeline.Runtime
	cl       *kgo.Client
	raw      []*kgo.Record // polled and not decoded yet
	position map[string]int64
}

func openReader(rt *pipeline.Runtime) (*reader, error) {
	from := map[string]map[int32]kgo.Offset{}
	for _, t := range Topics {
		from[rt.TopicName(t)] = map[int32]kgo.Offset{}
		for p := range rt.Partitions(t) {
			from[rt.TopicName(t)][p] = kgo.NewOffset().AtStart()
		}
	}
	cl, err := rt.Client(kgo.ConsumePartitions(from), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return nil, err
	}
	return &reader{rt: rt, cl: cl, position: map[string]int64{}}, nil
}

func (r *reader) close() { r.cl.Close() }

// poll gives what comes within a time.
func (r *reader) poll(ctx context.Context, wait time.Duration) (points []Point, err error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	if len(r.raw) == 0 {
		fetches := r.cl.PollRecords(ctx, 5000)
		r.raw = fetches.Records()
		for _, e := range fetches.Errors() {
			if err := r.failed(e); err != nil {
				return nil, err
			}
		}
	}
	for len(r.raw) > 0 {
		rec := r.raw[0]
		topic := r.rt.BaseName(rec.Topic)
		if !rec.Attrs.IsControl() {
			decoded, err := r.rt.Decode(context.WithoutCancel(ctx), rec)
			if errors.Is(err, pipeline.ErrTransient) {
				<-ctx.Done() // it may fail at once, again and again
				return points, nil
			}
			if err != nil {
				r.rt.Log.Warn("a record cannot be read and is passed over", "stage", Name, "record", decoded.Ref.String(), "error", err)
			} else {
				points = append(points, Point{topic, rec.Offset, rec.Timestamp, decoded.Value})
				r.rt.Metrics.Records.WithLabelValues(Name, topic).Inc()
			}
		}
		r.raw, r.position[topic] = r.raw[1:], rec.Offset+1
	}
	return points, nil
}

// failed tells what ends the stage from what the client gets over by itself.
func (r *reader) failed(e kgo.FetchError) error {
	switch {
	case errors.Is(e.Err, context.Canceled), errors.Is(e.Err, context.DeadlineExceeded):
		return nil
	case errors.Is(e.Err, kerr.OffsetOutOfRange):
		return pipeline.Fatal("%s/%d: points were deleted while they were read", e.Topic, e.Partition)
	}
	err := pipeline.Denied(e.Err, pipeline.ReadTopic(e.Topic))
	if errors.Is(err, pipeline.ErrFatal) || errors.Is(err, kgo.ErrClientClosed) {
		return fmt.Errorf("read %s/%d: %w", e.Topic, e.Partition, err)
	}
	r.rt.Log.Warn("fetch failed; the client tries again", "stage", Name, "topic", e.Topic, "error", e.Err)
	return nil
}

// ends is where the topics end now.
func (r *reader) ends(ctx context.Context) (map[string]int64, error) {
	ends := map[string]int64{}
	for _, t := range Topics {
		listed, err := kadm.NewClient(r.cl).ListCommittedOffsets(ctx, r.rt.TopicName(t))
		if err == nil {
			err = listed.Error()
		}
		if err != nil {
			return nil, fmt.Errorf("look up where %s ends: %w", t, err)
		}
		listed.Each(func(o kadm.ListedOffset) { ends[t] = max(ends[t], o.Offset) })
	}
	return ends, nil
}

func (r *reader) reached(ends map[string]int64) bool {
	for t, end := range ends {
		if r.position[t] < end {
			return false
		}
	}
	return true
}
