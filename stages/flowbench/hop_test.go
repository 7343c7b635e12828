package flowbench

import (
	"context"
	"sync"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// BenchmarkHop lets one stage after the other work off a topic that was filled before: the scorer traces, the packer the scorer's
// SampleGroups, the null learner's trainer the packer's MicroBatches.
//
// raw moves the same bytes with neither transactions nor records to decode: a plain consumer reads what the stage reads, and
// meanwhile a plain producer writes what the stage writes, tensors that the stage moved to the blob store included.
//
// Both clocks start when the first records are asked for, so that neither has fetched ahead by then, and joining a group counts for
// neither. The stage's ends when its last transaction is over, raw's when all is read and all that it writes is acknowledged.
func BenchmarkHop(b *testing.B) {
	eachBroker(b, func(b *testing.B, brokers []string) {
		for _, s := range []shape{usual, long} {
			b.Run(s.name, func(b *testing.B) {
				clock := &stopwatch{}
				w := newWorld(b, brokers, s, 0, clock)
				w.fill()
				in := pipeline.TopicTraces
				w.move(in, w.copies(in)) // a broker that has just started would be slow for the first stage alone
				for _, hop := range []struct{ stage, out string }{
					{"scorer", pipeline.TopicSamples}, {"packer", pipeline.TopicBatches}, {"trainer", pipeline.TopicPolicies},
				} {
					clock.reset()
					before := processorTime(b)
					end := w.workOff(hop.stage)
					took := processorTime(b) - before
					r := float64(s.rollouts()) / end.Sub(clock.started(b)).Seconds()
					raw := w.move(in, w.copies(hop.out))
					b.Run(hop.stage, func(b *testing.B) {
						b.ReportMetric(r, "rollouts/s")
						b.ReportMetric(float64(took.Microseconds())/float64(s.rollouts()), "cpu-µs/rollout")
					})
					b.Run(hop.stage+"-raw", func(b *testing.B) {
						b.ReportMetric(float64(s.rollouts())/raw.seconds, "rollouts/s")
						b.ReportMetric(raw.megabytes/raw.seconds, "MB/s")
						b.ReportMetric(float64(raw.processor.Microseconds())/float64(s.rollouts()), "cpu-µs/rollout")
					})
					in = hop.out
				}
			})
		}
	})
}

// fill writes the traces of all rollouts, as an environment server would have them.
func (w *world) fill() {
	w.Helper()
	cl := w.client()
	var failed error
	for i := range w.rollouts() {
		t := w.trace(int64(i/groupSize), i%groupSize)
		r, err := w.rt.Encode(w.Context(), pipeline.Emission{Topic: pipeline.TopicTraces, Partition: pipeline.AutoPartition, Value: t})
		if err != nil {
			w.Fatal(err)
		}
		cl.Produce(w.Context(), r, func(_ *kgo.Record, err error) {
			if err != nil {
				failed = err // promises are called one after the other
			}
		})
	}
	if err := cl.Flush(w.Context()); err != nil || failed != nil {
		w.Fatal(err, failed)
	}
}

// trace is a rollout of a prompt and an answer in turn.
func (w *world) trace(group int64, index int) *schemas.Trace {
	t := &schemas.Trace{
		Env: drillName, EnvVersion: "1", GroupID: group, GroupSize: groupSize, RolloutIndex: index, Split: schemas.SplitTrain, Task: `{"index":1}`,
		Reward: new(float64(index)), Rewards: map[string]*float64{"points": new(float64(index))}, PolicyStart: new(int64(0)), PolicyEnd: new(int64(0)),
		StopReason: "done", Instance: "one",
	}
	for i := range w.nodes {
		seed := group
		if i%2 == 1 {
			seed = group*groupSize + int64(index) + 1<<32
		}
		at := from(seed, i, w.tokens)
		n := schemas.Node{
			Parent: i - 1, Role: "user", Content: words.text[3*at : 3*(at+w.tokens)], TokenIDs: schemas.PackInt32s(words.tokens[at : at+w.tokens]),
			Mask: make([]byte, w.tokens), Logprobs: make([]byte, 4*w.tokens), BodyTo: w.tokens,
		}
		if i%2 == 1 {
			n.Role, n.Temperature, n.Versions = "assistant", 1, []schemas.VersionRun{{Version: 0}}
			n.Logprobs = schemas.PackFloat32s(words.logprobs[at : at+w.tokens])
			for k := range n.Mask {
				n.Mask[k] = 1
			}
		}
		t.Nodes = append(t.Nodes, n)
	}
	return t
}

// A stopwatch is started by the first request that fetches records.
type stopwatch struct {
	mu    sync.Mutex
	start time.Time
}

// OnBrokerE2E implements kgo.HookBrokerE2E.
func (s *stopwatch) OnBrokerE2E(_ kgo.BrokerMetadata, key int16, e kgo.BrokerE2E) {
	const records = 64 << 10 // bytes: what a stage reads of others' states and versions before has fewer
	s.mu.Lock()
	defer s.mu.Unlock()
	if kmsg.Key(key) == kmsg.Fetch && e.BytesRead >= records && s.start.IsZero() {
		s.start = time.Now().Add(-e.DurationE2E())
	}
}

func (s *stopwatch) reset() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.start = time.Time{}
}

func (s *stopwatch) started(t testing.TB) time.Time {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.start.IsZero() {
		t.Fatal("no records were fetched")
	}
	return s.start
}

// workOff runs a stage until nothing is left for it, and says when that was.
func (w *world) workOff(stage string) (end time.Time) {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), deadline)
	defer cancel()
	r := w.stage(stage)
	work, stop := context.WithCancel(ctx)
	defer stop()
	done := make(chan error, 1)
	go func() { done <- r.Run(work) }()
	for topic := map[string]string{"scorer": pipeline.TopicSamples, "packer": pipeline.TopicOutcomes}[stage]; topic != ""; {
		if w.emitted(stage, topic) == w.rollouts()/groupSize { // one for each group
			end = time.Now()
			stop()
			break
		}
		select {
		case err := <-done:
			w.Fatalf("%s ended: %v", stage, err)
		case <-time.After(time.Millisecond):
		}
	}
	if err := <-done; err != nil || ctx.Err() != nil {
		w.Fatal(err, ctx.Err())
	}
	if end.IsZero() { // the trainer ends by itself
		end = time.Now()
	}
	return end
}

// emitted is how many records a stage has committed to a topic.
func (w *world) emitted(stage, topic string) int {
	w.Helper()
	var m dto.Metric
	if err := w.rt.Metrics.Emitted.WithLabelValues(stage, topic).Write(&m); err != nil {
		w.Fatal(err)
	}
	return int(m.GetCounter().GetValue())
}

// copies are the records of a topic as they would be without a blob store.
func (w *world) copies(topic string) (all []*kgo.Record) {
	w.Helper()
	w.read(func(_ string, r *kgo.Record) {
		rec, err := w.rt.Decode(w.Context(), r)
		if err != nil {
			w.Fatal(err)
		}
		value, err := schemas.Encode(rec.Value)
		if err != nil {
			w.Fatal(err)
		}
		all = append(all, &kgo.Record{Key: r.Key, Value: value, Partition: r.Partition})
	}, topic)
	return all
}
