package envserver

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

const (
	// clockMargin is how much earlier outcomes are read than the oldest task was written: their writers' clocks differ.
	clockMargin = time.Minute
	// oldestDeadline bounds the look for the oldest task.
	oldestDeadline = 30 * time.Second
)

// followOutcomes starts reading outcomes where those of unfinished tasks may be, so that a start takes as long on an old
// run as on a young one.
func (s *Server) followOutcomes(ctx context.Context) (*pipeline.Follower, error) {
	ctx, cancel := context.WithTimeout(ctx, oldestDeadline)
	defer cancel()
	oldest := time.Now()
	for _, p := range s.players {
		at, err := s.oldestTask(ctx, p.info.Name)
		if err != nil {
			return nil, fmt.Errorf("look for the oldest task of %s: %w", p.info.Name, pipeline.Denied(err))
		}
		if at.Before(oldest) {
			oldest = at
		}
	}
	return s.rt.FollowSince(ctx, oldest.Add(-clockMargin), pipeline.TopicOutcomes)
}

// oldestTask is when the oldest unfinished task of an environment was written, as the group's commits say, whoever plays
// it: its partition may come here later. It is now where there is none.
func (s *Server) oldestTask(ctx context.Context, env string) (time.Time, error) {
	topic := s.rt.TopicName(pipeline.TopicTasks(env))
	starts, err := s.openTasks(ctx, topic, s.rt.TopicName(group(env)))
	oldest := time.Now()
	if err != nil || len(starts) == 0 {
		return oldest, err
	}
	cl, err := s.rt.Client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: starts}),
		kgo.FetchIsolationLevel(kgo.ReadUncommitted()), kgo.KeepControlRecords())
	if err != nil {
		return oldest, err
	}
	defer cl.Close()
	for len(starts) > 0 {
		fetches := cl.PollRecords(ctx, 1) // the first of a partition is enough
		if err := fetches.Err(); err != nil {
			return oldest, err
		}
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if len(p.Records) == 0 {
				return
			}
			if at := p.Records[0].Timestamp; at.Before(oldest) {
				oldest = at
			}
			delete(starts, p.Partition)
			cl.PauseFetchPartitions(map[string][]int32{topic: {p.Partition}})
		})
	}
	return oldest, nil
}

// openTasks is the oldest unfinished offset of every partition that has one.
func (s *Server) openTasks(ctx context.Context, topic, group string) (map[int32]kgo.Offset, error) {
	cl, err := s.rt.Client()
	if err != nil {
		return nil, err
	}
	defer cl.Close()
	adm := kadm.NewClient(cl)
	first, err := adm.ListStartOffsets(ctx, topic)
	if err == nil {
		err = first.Error()
	}
	if err != nil {
		return nil, err
	}
	ends, err := adm.ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		return nil, err
	}
	committed, err := adm.FetchOffsets(ctx, group)
	if err == nil {
		err = committed.Error()
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return nil, err
	}
	open := map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) {
		start, _ := first.Lookup(topic, end.Partition)
		low := start.Offset
		if c, ok := committed.Lookup(topic, end.Partition); ok {
			low = max(low, c.At)
		}
		if low < end.Offset {
			open[end.Partition] = kgo.NewOffset().At(low)
		}
	})
	return open, nil
}
