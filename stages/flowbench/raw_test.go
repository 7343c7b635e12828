package flowbench

import (
	"context"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
)

// A moved is what a plain producer and a plain consumer did at once.
type moved struct {
	seconds, megabytes float64
	processor          time.Duration // of this process
}

// processorTime is what this process has taken so far.
func processorTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// move reads topic to its end while it writes records to a topic of its own, with the clients that the stages have: compressed as
// theirs are, acknowledged by all replicas, idempotent, without transactions. Both are connected when the clock starts.
func (w *world) move(topic string, out []*kgo.Record) moved {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), deadline)
	defer cancel()
	spans, err := w.settled(ctx, topic)
	if err != nil {
		w.Fatal(err)
	}
	in, ends := map[int32]kgo.Offset{}, map[int32]int64{}
	for p, s := range spans[topic] {
		if s.End > s.Start {
			in[p], ends[p] = kgo.NewOffset().At(s.Start), s.End
		}
	}
	to := w.topicFor(ctx, out)
	producer := w.client()
	if err := producer.ProduceSync(ctx, &kgo.Record{Topic: to}).FirstErr(); err != nil {
		w.Fatal(err)
	}
	consumer := w.client(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err := consumer.Ping(ctx); err != nil {
		w.Fatal(err)
	}
	began, before := time.Now(), processorTime(w)
	consumer.AddConsumePartitions(map[string]map[int32]kgo.Offset{w.rt.TopicName(topic): in})
	bytes := 0
	written := make(chan error, 1)
	go func() { written <- produceAll(ctx, producer, to, out) }()
	for len(ends) > 0 {
		fetches := consumer.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			w.Fatal(err)
		}
		for iter := fetches.RecordIter(); !iter.Done(); {
			r := iter.Next()
			bytes += len(r.Value)
			if r.Offset+1 >= ends[r.Partition] {
				delete(ends, r.Partition)
			}
		}
	}
	if err := <-written; err != nil {
		w.Fatal(err)
	}
	took, processor := time.Since(began), processorTime(w)-before
	for _, r := range out {
		bytes += len(r.Value)
	}
	return moved{took.Seconds(), float64(bytes) / 1e6, processor}
}

// moveAll reads and writes everything that the run's topics hold.
func (w *world) moveAll() (all moved) {
	w.Helper()
	for _, topic := range []string{pipeline.TopicTasks(drillName), pipeline.TopicTraces, pipeline.TopicSamples, pipeline.TopicBatches} {
		m := w.move(topic, w.copies(topic))
		all.seconds += m.seconds
		all.megabytes += m.megabytes
		all.processor += m.processor
	}
	return all
}

func produceAll(ctx context.Context, cl *kgo.Client, topic string, records []*kgo.Record) error {
	var failed error
	for _, r := range records {
		r.Topic = topic
		cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err // promises are called one after the other
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	return failed
}

// topicFor makes a topic with room for records.
func (w *world) topicFor(ctx context.Context, records []*kgo.Record) string {
	w.Helper()
	partitions := int32(1)
	for _, r := range records {
		partitions = max(partitions, r.Partition+1)
	}
	w.raw++
	name := w.rt.TopicName("raw-" + strconv.Itoa(w.raw))
	most := strconv.Itoa(pipeline.TopicRecordBytes)
	resp, err := kadm.NewClient(w.client()).CreateTopic(ctx, partitions, -1, map[string]*string{"max.message.bytes": &most}, name)
	if err == nil {
		err = resp.Err
	}
	if err != nil {
		w.Fatal(err)
	}
	return name
}
