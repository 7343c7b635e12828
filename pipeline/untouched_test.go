package pipeline

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// asks reports whether a request is for the ends of a topic.
func asks(req kmsg.Request, topic string) bool {
	for _, t := range req.(*kmsg.ListOffsetsRequest).Topics {
		if t.Topic == topic && t.Partitions[0].Timestamp == -1 {
			return true
		}
	}
	return false
}

// TestAnotherBegins has an instance work for the first time between another's look at the state, which is empty, and its
// look at what the stage has written: that is no proof that the state was deleted.
func TestAnotherBegins(t *testing.T) {
	rt, cluster := testRuntime(t)
	looks, begun := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	cluster.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if asks(req, rt.TopicName(TopicSamples)) && first.CompareAndSwap(false, true) {
			close(looks)
			cluster.SleepControl(func() { <-begun })
		}
		return nil, nil, false
	})
	p, err := NewProcessor(rt, toyConfig())
	if err != nil {
		t.Fatal(err)
	}
	restored := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	go func() {
		_, err := p.restore(ctx, 1, commits{})
		restored <- err
	}()
	select {
	case <-looks:
	case err := <-restored:
		t.Fatalf("it did not look: %v", err)
	}
	produce(t, rt, pairsOf(0, 0)...)
	worked(t, another(t, rt, "two"), 1)
	close(begun)
	if err := <-restored; err != nil {
		t.Error(err)
	}
}

// TestFirstStateComesFirst fails the first state record there ever is: nothing else of that transaction is on a log, where
// it would look, aborted or not, as if there had been state once.
func TestFirstStateComesFirst(t *testing.T) {
	rt, cluster := testRuntime(t, kfake.NumBrokers(2))
	for topic, node := range map[string]int32{TopicState: 0, TopicSamples: 1} { // so that each has a request of its own
		for n := range rt.Partitions(topic) {
			if err := cluster.MoveTopicPartition(rt.TopicName(topic), n, node); err != nil {
				t.Fatal(err)
			}
		}
	}
	log, state := listen(rt), topicID(t, rt, TopicState)
	var failed atomic.Int64
	cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		for _, topic := range req.(*kmsg.ProduceRequest).Topics {
			if topic.TopicID == state && failed.Add(1) == 1 {
				return refusal(req, kerr.InvalidTxnState.Code, state), nil, true
			}
		}
		return nil, nil, false
	})
	produce(t, rt, pairsOf(0, 3)...)
	worked(t, rt, 4)
	noMore(t, rt, TopicSamples, 4)
	if failed.Load() < 2 || !log.has("stage starts over") {
		t.Errorf("the state record did not fail: %s", log)
	}
}

// TestStateSeemsDeleted has a broker say several times that there is no state, as one does that has slept and does not know
// yet that others lead: the stage looks again.
func TestStateSeemsDeleted(t *testing.T) {
	rt, cluster := testRuntime(t)
	produce(t, rt, pairsOf(0, 0)...)
	worked(t, rt, 1)
	deleteGroup(t, rt, rt.TopicName("scorer"))
	log := listen(rt)
	const lies = 2 * (looksForState - 1) // it looks twice before it says so
	var told atomic.Int64
	cluster.ControlKey(int16(kmsg.ListOffsets), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		if !asks(req, rt.TopicName(TopicState)) || told.Load() == lies {
			return nil, nil, false
		}
		told.Add(1)
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, topic := range req.(*kmsg.ListOffsetsRequest).Topics {
			empty := kmsg.NewListOffsetsResponseTopic()
			empty.Topic = topic.Topic
			for _, p := range topic.Partitions {
				part := kmsg.NewListOffsetsResponseTopicPartition()
				part.Partition, part.Offset = p.Partition, 0
				empty.Partitions = append(empty.Partitions, part)
			}
			resp.Topics = append(resp.Topics, empty)
		}
		return resp, nil, true
	})
	produce(t, rt, pairsOf(1, 3)...)
	worked(t, rt, 4)
	noMore(t, rt, TopicSamples, 4)
	if told.Load() != lies || !log.has("no state of it was found") {
		t.Errorf("%d answers were wrong: %s", told.Load(), log)
	}
}
