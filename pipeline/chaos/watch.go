package chaos

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A watch reads the topics of a run while it goes, committed records only: how fast it is, whether it gets on, whether
// it has ended. It proves nothing: that is the auditor's.
type watch struct {
	cl   *kgo.Client
	rt   *pipeline.Runtime
	keep func(r *kgo.Record) // takes records that may be written again

	mu      sync.Mutex
	groups  map[string]uint8  // by key: emitted, decided
	open    int               // groups emitted and not decided
	version int64             // newest policy, -1 for none
	final   bool              //
	packed  int64             // newest step that was packed
	eval    map[int64]bool    // versions that were measured
	dlq     map[string]bool   // where refused records stood
	stamps  []stamp           // of versions
	actives map[string]string // instance that wrote the newest state, by stage
	waiting map[*passage]bool // passages that have not ended
}

const (
	emitted = 1 << iota
	decided
)

// A stamp is when a version was published.
type stamp struct {
	at      time.Time
	version int64
}

// newWatch reads the topics of a run, which must exist.
func newWatch(rt *pipeline.Runtime, env string, keep func(*kgo.Record)) (*watch, error) {
	w := &watch{
		rt: rt, keep: keep, groups: map[string]uint8{}, version: -1, eval: map[int64]bool{},
		dlq: map[string]bool{}, actives: map[string]string{}, waiting: map[*passage]bool{},
	}
	start := map[string]map[int32]kgo.Offset{}
	for _, t := range append(allTopics(), pipeline.TopicTasks(env)) {
		start[rt.TopicName(t)] = map[int32]kgo.Offset{}
		for p := range rt.Partitions(t) {
			start[rt.TopicName(t)][p] = kgo.NewOffset().AtStart()
		}
	}
	var err error
	w.cl, err = rt.Client(kgo.ConsumePartitions(start), kgo.FetchIsolationLevel(kgo.ReadCommitted()))
	return w, err
}

// allTopics are those that a run has whatever its environments.
func allTopics() []string {
	var names []string
	for _, t := range pipeline.Topics {
		if t.Key != nil && t.Name == pipeline.TopicTasks("") {
			continue
		}
		names = append(names, t.Name)
	}
	return names
}

// run reads until ctx ends. Brokers that are gone for a while are no error; lost hears of records that they have lost.
func (w *watch) run(ctx context.Context, lost func(error)) {
	defer w.cl.Close()
	for ctx.Err() == nil {
		fetches := w.cl.PollRecords(ctx, 10_000)
		for _, e := range fetches.Errors() {
			var loss *kgo.ErrDataLoss
			if errors.As(e.Err, &loss) {
				lost(fmt.Errorf("%s/%d: %w", e.Topic, e.Partition, e.Err))
			}
		}
		fetches.EachRecord(w.take)
	}
}

func (w *watch) take(r *kgo.Record) {
	topic := w.rt.BaseName(r.Topic)
	if topic == pipeline.TopicTraces || topic == pipeline.TopicEvalTraces {
		w.keep(r)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if injected(r) {
		return
	}
	if _, ok := pipeline.EnvOfTasks(topic); ok {
		w.emitted(r)
		return
	}
	switch topic {
	case pipeline.TopicDLQ:
		w.dlq[string(r.Key)] = true
	case pipeline.TopicOutcomes:
		if o, err := schemas.DecodeAs[*schemas.GroupOutcome](r.Value); err == nil {
			w.decided(string(r.Key), o)
		}
	case pipeline.TopicState:
		if s, err := schemas.DecodeAs[*schemas.StageState](r.Value); err == nil {
			w.actives[s.Stage] = s.Instance
		}
	case pipeline.TopicPolicies:
		if v, err := schemas.DecodeAs[*schemas.PolicyVersion](r.Value); err == nil {
			w.published(v)
		}
	case pipeline.TopicEvals:
		if e, err := schemas.DecodeAs[*schemas.EvalResult](r.Value); err == nil {
			w.eval[e.Version] = true
		}
	}
}

func (w *watch) emitted(r *kgo.Record) {
	key := string(r.Key)
	eval, id, ok := pipeline.GroupOfKey(key)
	if !ok {
		return
	}
	if was := w.groups[key]; was&emitted == 0 {
		w.groups[key] = was | emitted
		if was&decided == 0 {
			w.open++
		}
	}
	if eval == "" {
		for p := range w.waiting {
			p.emitted(key, id, r.Timestamp)
		}
	}
}

func (w *watch) decided(key string, o *schemas.GroupOutcome) {
	was := w.groups[key]
	w.groups[key] = was | decided
	if was == emitted {
		w.open--
	}
	if o.Step != nil {
		w.packed = max(w.packed, *o.Step)
	}
	for p := range w.waiting {
		p.decided(key)
	}
}

func (w *watch) published(v *schemas.PolicyVersion) {
	w.version, w.final = v.Version, v.Final
	w.stamps = append(w.stamps, stamp{time.Now(), v.Version})
	for p := range w.waiting {
		if p.published() {
			delete(w.waiting, p)
		}
	}
}

// ended reports whether the run has: the final version is out, it is measured, and every group has its outcome.
func (w *watch) ended() (bool, string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	state := fmt.Sprintf("version %d (final: %v), step %d packed, %d groups open, final version measured: %v", w.version, w.final, w.packed, w.open, w.eval[w.version])
	return w.final && w.open == 0 && w.eval[w.version], state
}

// active is the instance of a stage that has written state last.
func (w *watch) active(stage string) string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.actives[stage]
}

// newest is the newest policy version; -1 before the first.
func (w *watch) newest() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.version
}

// step is the newest step that was packed.
func (w *watch) step() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.packed
}

// rate is the number of versions a second between two times, and the longest time without one.
func (w *watch) rate(from, to time.Time) (perSecond float64, silence time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last, n := from, 0
	for _, s := range w.stamps {
		if s.at.Before(from) || s.at.After(to) {
			continue
		}
		n++
		silence = max(silence, s.at.Sub(last))
		last = s.at
	}
	silence = max(silence, to.Sub(last))
	return float64(n) / to.Sub(from).Seconds(), silence
}

// refused reports whether the record at a place is in dlq.
func (w *watch) refused(at string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.dlq[at]
}

// pass begins a passage: the time until the pipeline has taken new work all the way.
func (w *watch) pass() *passage {
	p := &passage{since: time.Now(), partitions: int64(w.rt.Run.TracePartitions), groups: map[string]int64{}, done: make(chan struct{})}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.waiting[p] = true
	return p
}

// A passage is the way of new work through the whole pipeline: of each partition of traces one group that was emitted
// after the passage began gets its outcome, and then a policy version is published. So every stage has a part in it, and
// every instance of the scorer.
type passage struct {
	since      time.Time
	partitions int64
	groups     map[string]int64 // partition of traces by key of the groups emitted since
	passed     []int64          // partitions of which a group was decided
	done       chan struct{}
	took       time.Duration // once done is closed
}

func (p *passage) emitted(key string, id int64, at time.Time) {
	if at.After(p.since) {
		p.groups[key] = id % p.partitions
	}
}

func (p *passage) decided(key string) {
	if partition, ok := p.groups[key]; ok && !slices.Contains(p.passed, partition) {
		p.passed = append(p.passed, partition)
	}
}

func (p *passage) published() bool {
	if int64(len(p.passed)) < p.partitions {
		return false
	}
	p.took = time.Since(p.since)
	close(p.done)
	return true
}
