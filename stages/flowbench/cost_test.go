package flowbench

import (
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// requests counts what clients ask of brokers.
type requests struct {
	mu             sync.Mutex
	count          map[kmsg.Key]int
	sent, received map[kmsg.Key]int // bytes
}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (q *requests) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.count == nil {
		q.reset()
	}
	q.count[kmsg.Key(key)]++
	q.sent[kmsg.Key(key)] += e.BytesWritten
	q.received[kmsg.Key(key)] += e.BytesRead
}

func (q *requests) reset() {
	q.count, q.sent, q.received = map[kmsg.Key]int{}, map[kmsg.Key]int{}, map[kmsg.Key]int{}
}

// take gives what was counted since it was called last.
func (q *requests) take() *requests {
	q.mu.Lock()
	defer q.mu.Unlock()
	taken := &requests{count: q.count, sent: q.sent, received: q.received}
	q.reset()
	return taken
}

// all is how many requests were made.
func (q *requests) all() (n int) {
	for _, count := range q.count {
		n += count
	}
	return n
}

// TestCostRequests lets scorer and packer, one after the other, work off what was there before, and counts. Every byte is fetched
// once. What was fetched together is one transaction, or a few where the machine is slow, with one request for its offsets and one for
// its end; nothing is asked for the sake of a single record but, at most, to write it. What a record has beside its tensors is next to
// nothing, and on the wire it is less than the tensors alone, as they are compressed.
func TestCostRequests(t *testing.T) {
	q := &requests{}
	s := usual
	s.steps = 8
	w := newWorld(t, fake(t), s, 0, q)
	w.fill()
	written := q.take()
	for _, hop := range []struct {
		stage, out string
		most       int // transactions: some 30 MB are fetched at once, and a poll takes 1,000 records
		alone      int // outputs that may go alone, as they come one by one
	}{
		{"scorer", pipeline.TopicSamples, 8, w.rollouts() / groupSize},
		{"packer", pipeline.TopicBatches, 8, 8 * int(w.steps)},
	} {
		start := time.Now()
		w.workOff(hop.stage)
		// A transaction takes no more records after half a second: of a machine that is too slow for hop.most there are more.
		most := hop.most + int(time.Since(start)/(500*time.Millisecond))
		took := q.take()
		out, tensors := w.bytes(hop.out)
		q.take()
		count := func(key kmsg.Key) int { return took.count[key] }
		t.Logf("%s: %d bytes fetched of %d, %d written of %d bytes of records, %d of them tensors; %v", hop.stage,
			took.received[kmsg.Fetch], written.sent[kmsg.Produce], took.sent[kmsg.Produce], out, tensors, took.count)
		if fetched, there := took.received[kmsg.Fetch], written.sent[kmsg.Produce]; fetched < there/2 || fetched > there+there/20 {
			t.Errorf("%s: %d bytes were fetched, %d were there", hop.stage, fetched, there)
		}
		transactions := count(kmsg.EndTxn)
		if transactions == 0 || transactions > most {
			t.Errorf("%s: %d transactions for %d rollouts, at most %d", hop.stage, transactions, w.rollouts(), most)
		}
		if commits := count(kmsg.TxnOffsetCommit); commits != transactions {
			t.Errorf("%s: offsets were committed %d times in %d transactions", hop.stage, commits, transactions)
		}
		sent := count(kmsg.Produce)
		if most := hop.alone + 4*transactions; sent > most {
			t.Errorf("%s: %d requests to write %d transactions, at most %d", hop.stage, sent, transactions, most)
		}
		if others := took.all() - sent; others > w.rollouts()/10 {
			t.Errorf("%s: %d other requests for %d rollouts, at most %d", hop.stage, others, w.rollouts(), w.rollouts()/10)
		}
		if out > tensors+tensors/50 {
			t.Errorf("%s: records of %d bytes for tensors of %d", hop.stage, out, tensors)
		}
		if sent := took.sent[kmsg.Produce]; sent > tensors {
			t.Errorf("%s: %d bytes were sent for tensors of %d", hop.stage, sent, tensors)
		}
		written = took
	}
}

// bytes is how many the records of a topic have, and how many of them are tensors'.
func (w *world) bytes(topic string) (records, tensors int) {
	w.Helper()
	w.read(func(_ string, r *kgo.Record) {
		rec, err := w.rt.Decode(w.Context(), r)
		if err != nil {
			w.Fatal(err)
		}
		records += len(r.Value)
		schemas.Tensors(rec.Value, func(_ string, data *[]byte) { tensors += len(*data) })
	}, topic)
	return records, tensors
}
