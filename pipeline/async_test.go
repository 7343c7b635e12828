package pipeline

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/schemas"
)

// A worker is an asynchronous core: it begins what a committed state lists and finishes it when it is let.
type worker struct {
	office    *office
	state     string // that it was restored from
	open      []Ref
	begun     int
	committed int
	revoked   bool
}

// An office is where the workers of one instance are looked at.
type office struct {
	mu      sync.Mutex
	finish  bool
	workers []*worker
}

func (o *office) config() ProcessorConfig {
	cfg := toyConfig()
	cfg.Stage, cfg.Proof = "envserver", nil
	cfg.New = func(_ int32, state []byte) (Core, error) {
		o.mu.Lock()
		defer o.mu.Unlock()
		w := &worker{office: o, state: string(state)}
		o.workers = append(o.workers, w)
		return w, nil
	}
	return cfg
}

// all reports whether something holds of so many workers.
func (o *office) all(n int, what func(w *worker) bool) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	count := 0
	for _, w := range o.workers {
		if what(w) {
			count++
		}
	}
	return count == n
}

func (w *worker) Process(r Record, _ *Out) error {
	w.office.mu.Lock()
	defer w.office.mu.Unlock()
	if slices.Contains(w.open, r.Ref) {
		return nil
	}
	w.open = append(w.open, r.Ref)
	return nil
}

func (w *worker) Tick(_ time.Time, out *Out) error {
	w.office.mu.Lock()
	defer w.office.mu.Unlock()
	if len(w.open) > w.begun {
		out.Touch() // so that they can begin
	}
	if !w.office.finish {
		return nil
	}
	for _, ref := range w.open[:w.begun] {
		out.Finish(ref)
		out.Emit(TopicSamples, &schemas.SampleGroup{Env: "toy", GroupID: ref.Offset*3 + int64(ref.Partition), Emitted: 2, Reason: schemas.FateFiltered})
	}
	w.open, w.begun = w.open[w.begun:], 0
	return nil
}

func (w *worker) State() ([]byte, error) {
	w.office.mu.Lock()
	defer w.office.mu.Unlock()
	if w.revoked {
		return []byte("handed over"), nil
	}
	w.committed = len(w.open)
	return []byte("at work"), nil
}

func (w *worker) Committed() {
	w.office.mu.Lock()
	defer w.office.mu.Unlock()
	if !w.revoked {
		w.begun = w.committed
	}
}

func (w *worker) Revoking() {
	w.office.mu.Lock()
	defer w.office.mu.Unlock()
	w.revoked = true
}

// tasks writes one record to each of the three partitions.
func tasks(t *testing.T, rt *Runtime) {
	t.Helper()
	produce(t, rt, trace(0, 0), trace(1, 0), trace(2, 0))
}

func atWork(w *worker) bool { return w.begun == 1 && !w.revoked }

// TestAsyncCoresOutliveAborts refuses the end of a transaction: the cores stay, no record comes to them twice, and what
// they finish afterwards is finished once.
func TestAsyncCoresOutliveAborts(t *testing.T) {
	rt, cluster := testRuntime(t)
	log := listen(rt)
	o := &office{}
	fired := fault{kmsg.EndTxn, kerr.UnknownServerError, 2, 1}.inject(t, rt, cluster)
	stop := start(t, rt, o.config())
	await(t, "the fault", func() bool { tasks(t, rt); return fired() == 1 })
	o.mu.Lock()
	o.finish = true
	o.mu.Unlock()
	tasks(t, rt)
	f, err := rt.Follow(TopicTraces)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	written, err := f.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	once(t, rt, len(written))
	if !log.has("stage starts over") || !o.all(3, func(*worker) bool { return true }) {
		t.Errorf("%d cores were made for three partitions", len(o.workers))
	}
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestStopHandsOver stops an instance: its cores are told, and the next instance gets the state they give then.
func TestStopHandsOver(t *testing.T) {
	rt, _ := testRuntime(t)
	o := &office{}
	stop := start(t, rt, o.config())
	tasks(t, rt)
	await(t, "the work", func() bool { return o.all(3, atWork) })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if !o.all(3, func(w *worker) bool { return w.revoked }) {
		t.Error("not every core was told")
	}
	next := &office{}
	stop = start(t, rt, next.config())
	await(t, "the next instance", func() bool {
		return next.all(3, func(w *worker) bool { return w.state == "handed over" && atWork(w) })
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}

// TestRevokedPartitionsAreHandedOver lets a second instance in: what it gets was handed over, and what stays is not touched.
func TestRevokedPartitionsAreHandedOver(t *testing.T) {
	rt, _ := testRuntime(t)
	o, other := &office{}, &office{}
	stops := []func() error{start(t, rt, o.config())}
	tasks(t, rt)
	await(t, "the work", func() bool { return o.all(3, atWork) })
	stops = append(stops, start(t, another(t, rt, "two"), other.config()))
	await(t, "work of the second", func() bool {
		return other.all(1, func(w *worker) bool { return w.state == "handed over" && atWork(w) })
	})
	if !o.all(2, atWork) || !o.all(3, func(*worker) bool { return true }) {
		t.Error("the cores of partitions that stayed were touched")
	}
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestLostPartitionsBeginNothing takes an instance's partitions away while it has no session: when it is back, the cores
// it kept for them are told that they are another's now.
func TestLostPartitionsBeginNothing(t *testing.T) {
	rt, cluster := testRuntime(t)
	log := listen(rt)
	o, other := &office{}, &office{}
	stops := []func() error{start(t, rt, o.config())}
	tasks(t, rt)
	await(t, "the work", func() bool { return o.all(3, atWork) })
	var mu sync.Mutex
	away := true
	cluster.ControlKey(int16(kmsg.InitProducerID), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		mu.Lock()
		defer mu.Unlock()
		if id := req.(*kmsg.InitProducerIDRequest).TransactionalID; !away || id == nil || !strings.HasSuffix(*id, ".one") {
			return nil, nil, false
		}
		return refusal(req, kerr.UnknownServerError.Code, [16]byte{}), nil, true
	})
	fired := fault{kmsg.EndTxn, kerr.UnknownServerError, 1, 1}.inject(t, rt, cluster)
	tasks(t, rt)
	await(t, "the loss of the session", func() bool { return fired() == 1 && log.has("claim transactional id") })
	leave := kadm.LeaveGroup(rt.TopicName("envserver")).InstanceIDs("one")
	if _, err := kadm.NewClient(client(t, rt)).LeaveGroup(t.Context(), leave); err != nil {
		t.Fatal(err)
	}
	stops = append(stops, start(t, another(t, rt, "two"), other.config()))
	await(t, "the second to have everything", func() bool { return other.all(3, func(w *worker) bool { return w.begun > 0 }) })
	o.mu.Lock()
	kept := slices.Clone(o.workers)
	o.mu.Unlock()
	mu.Lock()
	away = false
	mu.Unlock()
	await(t, "the cores that were kept to be told", func() bool {
		o.mu.Lock()
		defer o.mu.Unlock()
		return !slices.ContainsFunc(kept, func(w *worker) bool { return !w.revoked })
	})
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// TestCoresWaitForTheirOffsets lets another member join while the offsets of partitions that have come back are fetched:
// the client names those partitions once only, and the cores that were kept for them stay.
func TestCoresWaitForTheirOffsets(t *testing.T) {
	rt, _ := testRuntime(t)
	o := &office{}
	p, err := NewProcessor(rt, o.config())
	if err != nil {
		t.Fatal(err)
	}
	kept := &worker{office: o}
	p.units[0] = &unit{partition: 0, core: kept}
	s := &session{p: p, awaited: map[int32]time.Time{}}
	topic := rt.TopicName(TopicTraces)
	s.assigned(t.Context(), nil, map[string][]int32{topic: {0, 1}})
	s.assigned(t.Context(), nil, map[string][]int32{topic: {2}})
	if kept.revoked || p.units[0] == nil {
		t.Error("a core was dropped although its partition is here")
	}
	s.revoked(t.Context(), nil, map[string][]int32{topic: {0}})
	s.assigned(t.Context(), nil, nil)
	if !kept.revoked || p.units[0] != nil {
		t.Error("a core was kept although its partition has gone")
	}
}

// TestPoisonAfterAnAbort: a refused record that went out in a transaction that was aborted goes out again, with the core that outlives it.
func TestPoisonAfterAnAbort(t *testing.T) {
	rt, cluster := testRuntime(t)
	fired := fault{kmsg.TxnOffsetCommit, kerr.UnknownServerError, 1, 1}.inject(t, rt, cluster)
	if err := client(t, rt).ProduceSync(t.Context(), &kgo.Record{Topic: rt.TopicName(TopicTraces), Value: []byte("garbage")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	stop := start(t, rt, (&office{}).config())
	await(t, "the refused record on dlq, after an abort", func() bool {
		all, err := rt.Spans(t.Context(), true, TopicDLQ)
		return err == nil && fired() == 1 && all[TopicDLQ][0].End > 2 // it and an abort, it and a commit
	})
	if err := stop(); err != nil {
		t.Fatal(err)
	}
}
