package cleanup

import (
	"context"
	"fmt"
	"math"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"

	"github.com/prl-project/prl/pipeline"
)

// heavy reports whether records of a topic are deleted: those that hold rollouts or tensors.
func heavy(topic string) bool {
	switch topic {
	case pipeline.TopicTraces, pipeline.TopicEvalTraces, pipeline.TopicSamples, pipeline.TopicBatches:
		return true
	}
	_, tasks := pipeline.EnvOfTasks(topic)
	return tasks
}

// deleteRecords deletes, of every heavy topic, the records that nobody needs, and says how many offsets that were.
func (c *Cleanup) deleteRecords(ctx context.Context, adm *kadm.Client) (int64, error) {
	topics, err := c.heavyTopics(ctx, adm)
	if err != nil || len(topics) == 0 {
		return 0, err
	}
	starts, err := adm.ListStartOffsets(ctx, topics.Names()...)
	if err == nil {
		err = starts.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("list where the topics start: %w", err)
	}
	ends, err := adm.ListEndOffsets(ctx, topics.Names()...)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return 0, fmt.Errorf("list the ends of the topics: %w", err)
	}
	below := kadm.Offsets{}
	n := int64(0)
	for _, t := range topics {
		name := c.rt.BaseName(t.Topic)
		for _, p := range t.Partitions {
			sunk, err := c.sunk(name, t.ID, p.Partition)
			if err != nil {
				return 0, err
			}
			start, _ := starts.Lookup(t.Topic, p.Partition)
			end, _ := ends.Lookup(t.Topic, p.Partition)
			// The newest offset stays: a restart of the embedded broker forgets where an empty partition ended.
			if mark := min(sunk, c.known.mark(c.readers, name, p.Partition), end.Offset-1); mark > start.Offset {
				below.Add(kadm.Offset{Topic: t.Topic, Partition: p.Partition, At: mark})
				n += mark - start.Offset
			}
		}
	}
	if n == 0 {
		return 0, nil
	}
	resp, err := adm.DeleteRecords(ctx, below)
	resp.Each(func(r kadm.DeleteRecordsResponse) {
		if r.Err != nil {
			err = pipeline.Denied(r.Err, pipeline.DeleteRecords(r.Topic))
		}
	})
	if err != nil {
		return 0, fmt.Errorf("delete records: %w", err)
	}
	c.records.Add(float64(n))
	return n, nil
}

func (c *Cleanup) heavyTopics(ctx context.Context, adm *kadm.Client) (kadm.TopicDetails, error) {
	all, err := adm.ListTopics(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the topics: %w", err)
	}
	for topic, d := range all {
		if !strings.HasPrefix(topic, c.rt.TopicName("")) || !heavy(c.rt.BaseName(topic)) {
			delete(all, topic)
		} else if d.Err != nil {
			return nil, fmt.Errorf("look at topic %s: %w", topic, d.Err)
		}
	}
	return all, nil
}

// mark is the position below which no reader but the sink needs records of a partition; 0 where one of them has not
// written state yet.
func (k *known) mark(readers map[string][]string, topic string, partition int32) int64 {
	if topic == pipeline.TopicBatches {
		return k.trained(partition)
	}
	t, _ := pipeline.TopicOf(topic)
	stages := readers[t.Name]
	if len(stages) == 0 {
		return 0
	}
	mark := int64(math.MaxInt64)
	for _, stage := range stages {
		mark = min(mark, k.low(stage, topic, partition))
	}
	return mark
}

func (k *known) low(stage, topic string, partition int32) int64 {
	if s := k.states[position{stage, topic, partition}]; s != nil {
		return s.LowOffset
	}
	return 0
}

// trained is where the batches of a rank begin that a restart of the trainer reads.
func (k *known) trained(rank int32) int64 {
	if v := k.checkpoint(); v != nil && int(rank) < len(v.NextOffsets) {
		return v.NextOffsets[rank]
	}
	return 0
}
