package sink

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// discover starts reading the topics of the run that are new, each from the end of its files, and checks that those it
// reads are still the same.
func (r *reader) discover(ctx context.Context) error {
	// kadm would answer from the client's cache, which may be some seconds old.
	resp, err := kmsg.NewPtrMetadataRequest().RequestWith(ctx, r.cl)
	if err != nil {
		if ctx.Err() == nil {
			r.rt.Log.Warn("listing the topics failed; it is tried again", "stage", stage, "error", err)
		}
		return nil
	}
	start := map[string]map[int32]kgo.Offset{}
	for _, d := range resp.Topics {
		if d.Topic == nil || d.ErrorCode != 0 {
			continue
		}
		topic := *d.Topic
		name, ours := strings.CutPrefix(topic, r.rt.TopicName(""))
		if _, known := pipeline.TopicOf(name); !ours || !known {
			continue
		}
		if id, ok := r.ids[topic]; ok && id != d.TopicID {
			return pipeline.Fatal("topic %s was made again while the sink read it: its id was %x and is %x; what the files hold is of the earlier one", topic, id, d.TopicID)
		}
		r.ids[topic] = d.TopicID
		if r.chains[topic] == nil {
			r.chains[topic] = map[int32]*Chain{}
		}
		for _, p := range d.Partitions {
			if r.chains[topic][p.Partition] != nil || !r.share.has(name, p.Partition) {
				continue
			}
			c, err := OpenChain(r.cfg.Dir, name, d.TopicID, p.Partition)
			if err != nil {
				return err
			}
			c.table.decode = func(b []byte) (schemas.Record, error) { return r.rt.DecodeValue(context.Background(), b) }
			r.chains[topic][p.Partition] = c
			if start[topic] == nil {
				start[topic] = map[int32]kgo.Offset{}
			}
			start[topic][p.Partition] = kgo.NewOffset().At(c.Next())
		}
	}
	r.cl.AddConsumePartitions(start)
	return nil
}

// lost says which records the sink can no longer get.
func (r *reader) lost(topic string, partition int32, cause error) error {
	at := r.chains[topic][partition].Next()
	ctx, cancel := context.WithTimeout(context.Background(), pollWait*20)
	defer cancel()
	adm := kadm.NewClient(r.cl)
	starts, err := adm.ListStartOffsets(ctx, topic)
	if err != nil {
		return pipeline.Fatal("%s/%d: position %d is out of range: %w", topic, partition, at, errors.Join(cause, err))
	}
	if first, ok := starts.Lookup(topic, partition); ok && first.Err == nil && first.Offset > at {
		return pipeline.Fatal("%s/%d: the records from offset %d to %d were deleted before the sink had written them", topic, partition, at, first.Offset-1)
	}
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err != nil {
		return pipeline.Fatal("%s/%d: position %d is out of range: %w", topic, partition, at, errors.Join(cause, err))
	}
	end, _ := ends.Lookup(topic, partition)
	return pipeline.Fatal("%s/%d: the files go to offset %d, the topic ends at %d: the broker has lost records: %w", topic, partition, at-1, end.Offset, cause)
}

// drain reads to where the topics end now and writes everything, in files and with memory within the limits, as ever. At the
// deadline it writes what it has.
func (r *reader) drain(ctx context.Context) error {
	if err := r.discover(ctx); err != nil {
		return err
	}
	ends, err := r.ends(ctx)
	if err != nil {
		r.rt.Log.Warn("the ends of the topics are not known; writing what has been read", "stage", stage, "error", err)
	}
	for {
		for ctx.Err() == nil && r.missing(ends) > 0 {
			if err := r.poll(ctx, pollWait); err != nil {
				return err
			}
			if _, err := r.flush(ctx, r.due(time.Now())); err != nil {
				return err
			}
		}
		var all []*Chain
		r.each(func(_ string, c *Chain) { all = append(all, c) })
		taken, err := r.flush(ctx, all)
		if err != nil {
			return err
		}
		if n := r.missing(ends); n == 0 || taken == 0 || ctx.Err() != nil {
			if n > 0 {
				r.rt.Log.Warn("stopped before everything was read; the next start goes on there", "stage", stage, "offsets", n)
			}
			return nil
		}
	}
}

// ends is the position behind the last committed record of every partition.
func (r *reader) ends(ctx context.Context) (kadm.ListedOffsets, error) {
	var topics []string
	for t := range r.chains {
		topics = append(topics, t)
	}
	if len(topics) == 0 {
		return nil, nil // no topic is all topics to kadm
	}
	ends, err := kadm.NewClient(r.cl).ListCommittedOffsets(ctx, topics...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, fmt.Errorf("list the ends of the topics: %w", err)
	}
	return ends, nil
}

// missing counts the offsets up to ends that have not been read.
func (r *reader) missing(ends kadm.ListedOffsets) int64 {
	n := int64(0)
	ends.Each(func(o kadm.ListedOffset) {
		if c := r.chains[o.Topic][o.Partition]; c != nil && o.Offset > c.Next() {
			n += o.Offset - c.Next()
		}
	})
	return n
}
