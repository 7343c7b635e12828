package pipeline

import (
	"bytes"
	"errors"
	"log/slog"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"
)

// A fault answers requests of the stage with an error: the nth of their kind and those after it, so many times.
type fault struct {
	key        kmsg.Key
	err        *kerr.Error
	nth, times int
}

func (f fault) String() string { return f.key.Name() + " " + f.err.Message }

// inject makes a fault happen; the function says how many times it has.
func (f fault) inject(t *testing.T, rt *Runtime, cluster *kfake.Cluster) (fired func() int) {
	t.Helper()
	traces := topicID(t, rt, TopicTraces)
	var mu sync.Mutex
	seen, count := 0, 0
	cluster.ControlKey(int16(f.key), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		if !ofStage(req, traces) {
			return nil, nil, false
		}
		if seen++; seen < f.nth || seen >= f.nth+f.times {
			return nil, nil, false
		}
		count++
		return refusal(req, f.err.Code, traces), nil, true
	})
	return func() int {
		mu.Lock()
		defer mu.Unlock()
		return count
	}
}

func topicID(t *testing.T, rt *Runtime, topic string) [16]byte {
	t.Helper()
	req := kmsg.NewPtrMetadataRequest()
	rt1 := kmsg.NewMetadataRequestTopic()
	rt1.Topic = kmsg.StringPtr(rt.TopicName(topic))
	req.Topics = append(req.Topics, rt1)
	resp, err := req.RequestWith(t.Context(), client(t, rt))
	if err != nil {
		t.Fatal(err)
	}
	return resp.Topics[0].TopicID
}

// ofStage tells the stage's requests from the test's own: those that are transactional, and fetches of committed traces.
func ofStage(req kmsg.Request, traces [16]byte) bool {
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		return req.TransactionID != nil
	case *kmsg.InitProducerIDRequest:
		return req.TransactionalID != nil
	case *kmsg.FetchRequest:
		for _, topic := range req.Topics {
			if topic.TopicID == traces {
				return req.IsolationLevel == 1
			}
		}
		return false
	}
	return true
}

// refusal is the response to a request in which everything has failed.
func refusal(req kmsg.Request, code int16, traces [16]byte) kmsg.Response {
	resp := req.ResponseKind()
	switch req := req.(type) {
	case *kmsg.ProduceRequest:
		resp := resp.(*kmsg.ProduceResponse)
		for _, topic := range req.Topics {
			rt := kmsg.NewProduceResponseTopic()
			rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				rp := kmsg.NewProduceResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	case *kmsg.FetchRequest:
		resp := resp.(*kmsg.FetchResponse)
		rt := kmsg.NewFetchResponseTopic()
		rt.TopicID = traces
		for _, topic := range req.Topics {
			for _, p := range topic.Partitions {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code
				rt.Partitions = append(rt.Partitions, rp)
			}
		}
		resp.Topics = append(resp.Topics, rt)
	case *kmsg.TxnOffsetCommitRequest:
		resp := resp.(*kmsg.TxnOffsetCommitResponse)
		for _, topic := range req.Topics {
			rt := kmsg.NewTxnOffsetCommitResponseTopic()
			rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
			for _, p := range topic.Partitions {
				rp := kmsg.NewTxnOffsetCommitResponseTopicPartition()
				rp.Partition, rp.ErrorCode = p.Partition, code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
	case *kmsg.OffsetFetchRequest:
		resp := resp.(*kmsg.OffsetFetchResponse)
		for _, group := range req.Groups {
			rg := kmsg.NewOffsetFetchResponseGroup()
			rg.Group = group.Group
			for _, topic := range group.Topics {
				rt := kmsg.NewOffsetFetchResponseGroupTopic()
				rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
				for _, p := range topic.Partitions {
					rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
					rp.Partition, rp.Offset, rp.ErrorCode = p, -1, code
					rt.Partitions = append(rt.Partitions, rp)
				}
				rg.Topics = append(rg.Topics, rt)
			}
			resp.Groups = append(resp.Groups, rg)
		}
	default:
		reflect.ValueOf(resp).Elem().FieldByName("ErrorCode").SetInt(int64(code))
	}
	return resp
}

// words is a log that can be searched.
type words struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (w *words) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.Write(b)
}

func (w *words) has(part string) bool { return w.count(part) > 0 }

func (w *words) count(part string) int { return strings.Count(w.String(), part) }

func (w *words) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// listen makes a runtime log to where the test can search.
func listen(rt *Runtime) *words {
	w := &words{}
	rt.Log = slog.New(slog.NewTextHandler(w, nil))
	return w
}

// TestFaultsEndInProgress answers requests of a stage with each error that brokers give in trouble: every group is
// decided once all the same. What is usual around a rebalance or a moved coordinator costs no transaction; the rest makes
// the stage start over, which it logs.
func TestFaultsEndInProgress(t *testing.T) {
	for _, c := range []struct {
		fault
		overcome bool // without starting over
	}{
		{fault{kmsg.Produce, kerr.UnknownProducerID, 3, 1}, false},
		{fault{kmsg.Produce, kerr.OutOfOrderSequenceNumber, 3, 1}, false},
		{fault{kmsg.Produce, kerr.InvalidTxnState, 3, 1}, false},
		{fault{kmsg.Produce, kerr.MessageTooLarge, 3, 1}, false},
		{fault{kmsg.Produce, kerr.NotLeaderForPartition, 3, 1}, true},
		{fault{kmsg.InitProducerID, kerr.CoordinatorLoadInProgress, 1, 2}, true},
		{fault{kmsg.InitProducerID, kerr.NotCoordinator, 1, 1}, true},
		{fault{kmsg.InitProducerID, kerr.ConcurrentTransactions, 2, 2}, true},
		{fault{kmsg.InitProducerID, kerr.UnknownServerError, 1, 1}, false},
		{fault{kmsg.TxnOffsetCommit, kerr.IllegalGeneration, 3, 2}, true},
		{fault{kmsg.TxnOffsetCommit, kerr.RebalanceInProgress, 3, 2}, true},
		{fault{kmsg.TxnOffsetCommit, kerr.CoordinatorLoadInProgress, 3, 2}, true},
		{fault{kmsg.TxnOffsetCommit, kerr.ConcurrentTransactions, 3, 2}, true},
		{fault{kmsg.TxnOffsetCommit, kerr.NotCoordinator, 3, 1}, true},
		{fault{kmsg.TxnOffsetCommit, kerr.UnknownMemberID, 3, 1}, false},
		{fault{kmsg.TxnOffsetCommit, kerr.OffsetMetadataTooLarge, 3, 1}, false},
		{fault{kmsg.TxnOffsetCommit, kerr.InvalidTxnState, 3, 1}, false},
		{fault{kmsg.TxnOffsetCommit, kerr.UnknownServerError, 3, 1}, false},
		{fault{kmsg.EndTxn, kerr.NotCoordinator, 3, 1}, true},
		{fault{kmsg.EndTxn, kerr.ConcurrentTransactions, 3, 1}, true},
		{fault{kmsg.EndTxn, kerr.CoordinatorLoadInProgress, 3, 1}, true},
		{fault{kmsg.EndTxn, kerr.InvalidTxnState, 3, 1}, false},
		{fault{kmsg.EndTxn, kerr.TransactionAbortable, 3, 1}, false},
		{fault{kmsg.EndTxn, kerr.UnknownServerError, 3, 1}, false},
		{fault{kmsg.OffsetFetch, kerr.UnstableOffsetCommit, 1, 1}, true},
		{fault{kmsg.JoinGroup, kerr.NotCoordinator, 1, 1}, true},
		{fault{kmsg.JoinGroup, kerr.UnknownMemberID, 1, 1}, true},
		{fault{kmsg.SyncGroup, kerr.RebalanceInProgress, 1, 1}, true},
		{fault{kmsg.Heartbeat, kerr.UnknownMemberID, 1, 1}, false},
		{fault{kmsg.Heartbeat, kerr.NotCoordinator, 1, 1}, true},
		{fault{kmsg.Fetch, kerr.NotLeaderForPartition, 2, 1}, true},
		{fault{kmsg.Fetch, kerr.KafkaStorageError, 2, 1}, true},
		{fault{kmsg.Fetch, kerr.UnknownServerError, 2, 1}, false},
	} {
		t.Run(c.String(), func(t *testing.T) {
			t.Parallel()
			rt, cluster := testRuntime(t)
			rt.Run.SeqLen = longSequences // batches are as large as they become: one that is refused as too large is a failure
			log := listen(rt)
			fired := c.inject(t, rt, cluster)
			cfg := toyConfig()
			cfg.TransactionTimeout = time.Minute
			stop := start(t, rt, cfg)
			produce, groups := producer(t, rt), int64(0)
			await(t, "the fault", func() bool {
				produce(pairsOf(groups, groups)...)
				groups++
				return fired() == c.times
			})
			produce(pairsOf(groups, groups+9)...)
			groups += 10
			oncePerGroup(t, committed(t, rt, TopicSamples, int(groups)), int(groups))
			if err := stop(); err != nil {
				t.Fatal(err)
			}
			noMore(t, rt, TopicSamples, int(groups))
			if over := log.has("stage starts over"); over == c.overcome {
				t.Errorf("it started over: %v, want %v\n%s", over, !c.overcome, log)
			}
		})
	}
}

// TestFencedEnds answers requests with each error that says that the name is another's now: the stage ends and says so.
func TestFencedEnds(t *testing.T) {
	for _, f := range []fault{
		{kmsg.Produce, kerr.InvalidProducerEpoch, 2, 1},
		{kmsg.TxnOffsetCommit, kerr.InvalidProducerEpoch, 2, 1},
		{kmsg.TxnOffsetCommit, kerr.FencedInstanceID, 2, 1},
		{kmsg.EndTxn, kerr.ProducerFenced, 2, 1},
		{kmsg.EndTxn, kerr.InvalidProducerEpoch, 2, 1},
		{kmsg.JoinGroup, kerr.FencedInstanceID, 1, 1},
		{kmsg.Heartbeat, kerr.FencedInstanceID, 1, 1},
	} {
		t.Run(f.String(), func(t *testing.T) {
			t.Parallel()
			rt, cluster := testRuntime(t)
			fired := f.inject(t, rt, cluster)
			done := run(t, rt, toyConfig())
			produce := producer(t, rt)
			groups := int64(0)
			var err error
			await(t, "the end of the stage", func() bool {
				produce(pairsOf(groups, groups)...)
				groups++
				select {
				case err = <-done:
					return true
				default:
					return false
				}
			})
			if fired() == 0 {
				t.Error("the fault did not happen")
			}
			if !errors.Is(err, ErrFenced) || !strings.Contains(err.Error(), "name in use") || !strings.Contains(err.Error(), "--instance") {
				t.Errorf("error %v", err)
			}
		})
	}
}

// TestRecordsOutOfRange stops a stage at the brokers' word that the records it asks for are gone.
func TestRecordsOutOfRange(t *testing.T) {
	rt, cluster := testRuntime(t)
	fired := fault{kmsg.Fetch, kerr.OffsetOutOfRange, 1, 1}.inject(t, rt, cluster)
	fatal(t, rt, toyConfig(), "start a new run, or restore the topic")
	if fired() == 0 {
		t.Error("the fault did not happen")
	}
}

// TestTransactionsTooLong stops a stage that the brokers refuse its transaction time-out, and says what to raise.
func TestTransactionsTooLong(t *testing.T) {
	rt, cluster := testRuntime(t)
	fired := fault{kmsg.InitProducerID, kerr.InvalidTransactionTimeout, 1, 1}.inject(t, rt, cluster)
	fatal(t, rt, toyConfig(), "refuse transactions of 4s: raise their transaction.max.timeout.ms")
	if fired() == 0 {
		t.Error("the fault did not happen")
	}
}

// TestUnstableForLong withholds the committed offsets, as an open transaction of another instance does: the stage is not
// ready, says what it waits for, and goes on once they come.
func TestUnstableForLong(t *testing.T) {
	rt, cluster := testRuntime(t)
	rt.Health = &Health{}
	log := listen(rt)
	fired := fault{kmsg.OffsetFetch, kerr.UnstableOffsetCommit, 1, 4}.inject(t, rt, cluster)
	p, err := NewProcessor(rt, toyConfig())
	if err != nil {
		t.Fatal(err)
	}
	p.patience = 1500 * time.Millisecond
	stop := begin(t, p)
	await(t, "the stage to have waited", func() bool { return fired() >= 2 })
	if _, all := rt.Health.snapshot(); all {
		t.Error("it waits and is ready")
	}
	await(t, "the stage to lose patience", func() bool { return log.has("the committed offsets of partition") })
	produce(t, rt, pairsOf(0, 2)...)
	once(t, rt, 3)
	if _, all := rt.Health.snapshot(); !all {
		t.Error("it works and is not ready")
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if fired() != 4 {
		t.Errorf("the fault happened %d times", fired())
	}
}

// TestTooMuchForOneTransaction refuses every transaction that decides more than eight groups: the stage takes less at a
// time until it gets through.
func TestTooMuchForOneTransaction(t *testing.T) {
	rt, cluster := testRuntime(t)
	var refused atomic.Int64
	cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		for _, topic := range req.(*kmsg.ProduceRequest).Topics {
			for _, p := range topic.Partitions {
				var batch kmsg.RecordBatch
				if topic.TopicID == [16]byte{} || batch.ReadFrom(p.Records) != nil || batch.NumRecords <= 8 || batch.ProducerID < 0 {
					continue
				}
				refused.Add(1)
				return refusal(req, kerr.MessageTooLarge.Code, topic.TopicID), nil, true
			}
		}
		return nil, nil, false
	})
	produce(t, rt, pairsOf(0, 59)...)
	p, err := NewProcessor(rt, toyConfig())
	if err != nil {
		t.Fatal(err)
	}
	p.take = 50
	stop := begin(t, p)
	once(t, rt, 60)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if refused.Load() == 0 {
		t.Error("nothing was refused")
	}
}

// TestOlderBroker runs on a broker that must be told which offsets belong to a transaction (before KIP-890).
func TestOlderBroker(t *testing.T) {
	rt, cluster := testRuntime(t, kfake.MaxVersions(kversion.V3_6_0()))
	told := make(chan struct{}, 1000)
	cluster.ControlKey(int16(kmsg.AddOffsetsToTxn), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		told <- struct{}{}
		return nil, nil, false
	})
	stop := start(t, rt, toyConfig())
	const groups = 20
	for i := range 2 * groups {
		produce(t, rt, trace(int64(i/2), i%2))
	}
	oncePerGroup(t, committed(t, rt, TopicSamples, groups), groups)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if len(told) == 0 {
		t.Error("the broker was told nothing")
	}
	stop = start(t, rt, toyConfig()) // what was committed holds
	produce(t, rt, trace(groups, 0), trace(groups, 1))
	oncePerGroup(t, committed(t, rt, TopicSamples, groups+1), groups+1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	noMore(t, rt, TopicSamples, groups+1)
}
