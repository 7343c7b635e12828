package pipeline

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/schemas"
)

// A requests is what a stage has asked of the brokers, by kind, in order.
type requests struct {
	mu   sync.Mutex
	list []kmsg.Request
}

// record keeps requests of some kinds.
func record(cluster *kfake.Cluster, keys ...kmsg.Key) *requests {
	r := &requests{}
	for _, key := range keys {
		cluster.ControlKey(int16(key), func(req kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			r.mu.Lock()
			defer r.mu.Unlock()
			r.list = append(r.list, req)
			return nil, nil, false
		})
	}
	return r
}

// of lists the recorded requests of one type.
func of[T kmsg.Request](r *requests) (list []T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, req := range r.list {
		if req, ok := req.(T); ok {
			list = append(list, req)
		}
	}
	return list
}

// TestStartAndStop looks at what a stage says to the brokers: it claims its transactional id before it joins, joins as a
// static member with short time-outs, asks for stable offsets, and does not leave when it stops.
func TestStartAndStop(t *testing.T) {
	rt, cluster := testRuntime(t)
	asked := record(cluster, kmsg.InitProducerID, kmsg.JoinGroup, kmsg.OffsetFetch, kmsg.LeaveGroup, kmsg.Fetch)
	produce(t, rt, pairsOf(0, 0)...)
	worked(t, rt, 1)
	claims, joins, offsets := of[*kmsg.InitProducerIDRequest](asked), of[*kmsg.JoinGroupRequest](asked), of[*kmsg.OffsetFetchRequest](asked)
	if len(joins) == 0 || len(offsets) == 0 {
		t.Fatal("it did not join")
	}
	asked.mu.Lock()
	join := slices.IndexFunc(asked.list, func(r kmsg.Request) bool { return r.Key() == int16(kmsg.JoinGroup) })
	claim := slices.IndexFunc(asked.list, func(r kmsg.Request) bool {
		init, ok := r.(*kmsg.InitProducerIDRequest)
		return ok && init.TransactionalID != nil
	})
	asked.mu.Unlock()
	if claim < 0 || claim > join {
		t.Errorf("it joined (request %d) before it had claimed its transactional id (request %d)", join, claim)
	}
	for _, c := range claims {
		if c.TransactionalID != nil && (*c.TransactionalID != "test.scorer.one" || c.TransactionTimeoutMillis != 4000) {
			t.Errorf("transactional id %s, time-out %d ms", *c.TransactionalID, c.TransactionTimeoutMillis)
		}
	}
	if j := joins[0]; j.Group != "test.scorer" || j.InstanceID == nil || *j.InstanceID != "one" || j.SessionTimeoutMillis != 6000 || j.Protocols[0].Name != "cooperative-sticky" {
		t.Errorf("it joined with %+v", j)
	}
	if !offsets[0].RequireStable {
		t.Error("it asked for offsets that are not stable")
	}
	if len(of[*kmsg.LeaveGroupRequest](asked)) > 0 {
		t.Error("it left its group")
	}
	traces := topicID(t, rt, TopicTraces)
	for _, f := range of[*kmsg.FetchRequest](asked) {
		if len(f.Topics) > 0 && f.Topics[0].TopicID == traces && f.IsolationLevel != 1 {
			t.Error("it reads what is not committed")
		}
	}
}

// TestEveryOwnedPartitionIsCommitted works on one partition of three: the commit has the other two, with the metadata
// they had before.
func TestEveryOwnedPartitionIsCommitted(t *testing.T) {
	rt, cluster := testRuntime(t)
	asked := record(cluster, kmsg.TxnOffsetCommit)
	stop := start(t, rt, toyConfig())
	produce(t, rt, pairsOf(0, 2)...) // one group for each
	committed(t, rt, TopicSamples, 3)
	states := len(committed(t, rt, TopicState, 1))
	before := len(of[*kmsg.TxnOffsetCommitRequest](asked))
	produce(t, rt, pairsOf(3, 3)...)
	committed(t, rt, TopicSamples, 4)
	committed(t, rt, TopicState, states+1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	commits := of[*kmsg.TxnOffsetCommitRequest](asked)
	last, earlier := commits[len(commits)-1], commits[before-1]
	metadata := func(c *kmsg.TxnOffsetCommitRequest) map[int32]string {
		m := map[int32]string{}
		for _, p := range c.Topics[0].Partitions {
			m[p.Partition] = *p.Metadata
		}
		return m
	}
	was, is := metadata(earlier), metadata(last)
	if len(was) != 3 || len(is) != 3 || was[1] != is[1] || was[2] != is[2] || was[0] == is[0] {
		t.Errorf("a commit has %v, the next one, of partition 0, has %v", was, is)
	}
}

// TestGuard feeds records that do not come where the core goes on.
func TestGuard(t *testing.T) {
	rt, _ := testRuntime(t)
	p, err := NewProcessor(rt, toyConfig())
	if err != nil {
		t.Fatal(err)
	}
	core, err := newPairs(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := &input{topic: TopicTraces, set: newUnfinished(5, nil), position: 5}
	p.units[0] = &unit{owned: true, core: core, inputs: []*input{in}}
	s := &session{p: p}
	r, err := rt.Encode(t.Context(), Emission{TopicTraces, 0, trace(0, 0)})
	if err != nil {
		t.Fatal(err)
	}
	feed := func(offset int64) error {
		r := *r
		r.Offset = offset
		came, err := s.came(kgo.Fetches{{Topics: []kgo.FetchTopic{{Topic: r.Topic, Partitions: []kgo.FetchPartition{{Records: []*kgo.Record{&r}}}}}}})
		if err == nil {
			_, err = s.feed(t.Context(), came)
		}
		return err
	}
	if err := feed(5); err != nil {
		t.Fatal(err)
	}
	if err := feed(5); err == nil || !strings.Contains(err.Error(), "came after offset 5 was fed") {
		t.Errorf("a record that came twice: %v", err)
	}
	in.position = 4 // what a seek that went wrong would leave
	if err := feed(6); err == nil || !strings.Contains(err.Error(), "is read from offset 4, its core is at 6") {
		t.Errorf("a record from the wrong place: %v", err)
	}
}

// TestFetchedAgain gives a stage the offsets of partitions it has, as the client does after a cancelled request: the cores
// stay. Offsets of some of a partition's inputs are not enough for a core.
func TestFetchedAgain(t *testing.T) {
	rt, _ := testRuntime(t)
	made := 0
	cfg := ProcessorConfig{Stage: "emitter", Inputs: []string{TopicOutcomes, TopicRequests}, New: func(n int32, state []byte) (Core, error) {
		made++
		return newPairs(n, state)
	}}
	p, err := NewProcessor(rt, cfg)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{p: p}
	fetched := func(topics ...string) {
		t.Helper()
		resp := kmsg.NewPtrOffsetFetchResponse()
		group := kmsg.NewOffsetFetchResponseGroup()
		for _, topic := range topics {
			rt1 := kmsg.NewOffsetFetchResponseGroupTopic()
			rt1.Topic = rt.TopicName(topic)
			rp := kmsg.NewOffsetFetchResponseGroupTopicPartition()
			rp.Offset = -1
			rt1.Partitions = append(rt1.Partitions, rp)
			group.Topics = append(group.Topics, rt1)
		}
		resp.Groups = append(resp.Groups, group)
		if err := s.fetched(t.Context(), nil, resp); err != nil {
			t.Fatal(err)
		}
	}
	fetched(TopicOutcomes)
	if made != 0 {
		t.Error("a core was made of half of the offsets")
	}
	fetched(TopicOutcomes, TopicRequests)
	core := p.units[0].core
	fetched(TopicOutcomes, TopicRequests)
	if made != 1 || p.units[0].core != core {
		t.Errorf("%d cores were made", made)
	}
}

// TestBusyInstanceLetsOthersIn keeps an instance busy without a pause: a second one gets its share all the same.
func TestBusyInstanceLetsOthersIn(t *testing.T) {
	rt, _ := testRuntime(t)
	stops := []func() error{start(t, rt, toyConfig())}
	produce := producer(t, rt)
	produce(pairsOf(0, 9)...)
	committed(t, rt, TopicSamples, 10)
	stops = append(stops, start(t, another(t, rt, "two"), toyConfig()))
	f, err := rt.Follow(TopicState)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	groups := int64(10)
	await(t, "work of the second", func() bool {
		produce(pairsOf(groups, groups+9)...)
		groups += 10
		//lint:ignore SA1012 kgo documents nil as: return what is buffered
		recs, err := f.Poll(nil)
		if err != nil {
			t.Fatal(err)
		}
		return slices.ContainsFunc(recs, func(r Record) bool { return r.Value.(*schemas.StageState).Instance == "two" })
	})
	once(t, rt, int(groups))
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestStopWaitsForNobody stops a stage whose join is not answered, as while other members are slow or dead.
func TestStopWaitsForNobody(t *testing.T) {
	rt, cluster := testRuntime(t)
	asked := make(chan struct{}, 100)
	cluster.ControlKey(int16(kmsg.JoinGroup), func(kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		asked <- struct{}{}
		return nil, nil, true // no answer
	})
	stop := start(t, rt, toyConfig())
	<-asked
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestPatienceIsWithOffsets builds cores for longer than the shell waits for offsets: as long as one after the other is
// there, and where a partition's offsets come again, there is nothing to give up.
func TestPatienceIsWithOffsets(t *testing.T) {
	rt, _ := testRuntime(t)
	p, err := NewProcessor(rt, toyConfig())
	if err != nil {
		t.Fatal(err)
	}
	long := time.Now().Add(-2 * p.patience)
	s := &session{p: p, awaited: map[int32]time.Time{0: long, 1: long}}
	if err := s.adopt(&unit{partition: 0}); err != nil {
		t.Fatal(err)
	}
	if err := s.check(t.Context(), time.Now()); err != nil {
		t.Errorf("after the first of two cores: %v", err)
	}
	if err := s.check(t.Context(), time.Now().Add(2*p.patience)); err == nil {
		t.Error("offsets that do not come are waited for without end")
	}
	p.units[1] = &unit{partition: 1, owned: true}
	if err := s.own(t.Context(), 1, nil); err != nil || len(s.awaited) != 0 {
		t.Errorf("partitions %v are waited for, error %v", s.awaited, err)
	}
}

// TestLostIsNotReady takes a member its place in the group: it is ready again when it has joined again.
func TestLostIsNotReady(t *testing.T) {
	rt, _ := testRuntime(t)
	rt.Health = &Health{}
	p, err := NewProcessor(rt, toyConfig())
	if err != nil {
		t.Fatal(err)
	}
	s := &session{p: p, awaited: map[int32]time.Time{}}
	ready := func() bool {
		t.Helper()
		if err := s.check(t.Context(), time.Now()); err != nil {
			t.Fatal(err)
		}
		return rt.Health.Ready(p.cfg.Group)
	}
	s.assigned(t.Context(), nil, nil)
	if !ready() {
		t.Error("a member without partitions is not ready")
	}
	s.lost(t.Context(), nil, nil)
	if ready() {
		t.Error("a stage that is in no group is ready")
	}
}
