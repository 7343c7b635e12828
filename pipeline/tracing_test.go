package pipeline

import (
	"log/slog"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline/pipelinetest/collector"
	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
)

// traced is a Runtime whose spans a collector has.
func traced(t *testing.T, ratio float64) (*Runtime, *collector.Collector) {
	t.Helper()
	c := collector.Start(t)
	cfg := DefaultTracingConfig()
	cfg.Endpoint, cfg.SampleRatio = c.URL, ratio
	tracer, err := NewTracer(cfg, "test", "one", prometheus.NewRegistry(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tracer.Close)
	return &Runtime{Run: DefaultRunConfig(), Tracing: tracer}, c
}

// TestRecordsCarryTheirSpans encodes each kind of record and reads its header again. Records of no group and no step, and of
// groups that are not traced, have none; the bytes are the same with tracing and without.
func TestRecordsCarryTheirSpans(t *testing.T) {
	rt, _ := traced(t, 1)
	tr := rt.Tracing
	root, group := tr.Rollout(tracing.Rollout{Group: 7, Index: 2}), tr.Rollout(tracing.Rollout{Group: 7, Index: -1})
	for name, c := range map[string]struct {
		e    Emission
		want tracing.Context
	}{
		"task":          {Emission{TopicTasks("catch"), 0, &schemas.Task{Env: "catch", GroupID: 7, RolloutIndex: 2}}, root},
		"refill":        {Emission{TopicTasks("catch"), 0, &schemas.Task{Env: "catch", GroupID: 7, RolloutIndex: 2, Attempt: 1}}, root.Task(1).Context},
		"whole group":   {Emission{TopicTasks("catch"), 0, &schemas.Task{Env: "catch", GroupID: 7, RolloutIndex: -1}}, group},
		"trace":         {Emission{TopicTraces, 0, &schemas.Trace{GroupID: 7, RolloutIndex: 2, Attempt: 1}}, root.Played(1)},
		"trace of eval": {Emission{TopicEvalTraces, 0, &schemas.Trace{Eval: "e", GroupID: 7, RolloutIndex: 2}}, tr.Rollout(tracing.Rollout{Eval: "e", Group: 7, Index: 2}).Played(0)},
		"samples":       {Emission{TopicSamples, 0, &schemas.SampleGroup{GroupID: 7}}, group.Child(tracing.ScoreGroupSpan)},
		"outcome":       {Emission{TopicOutcomes, 0, &schemas.GroupOutcome{GroupID: 7}}, group.Child(tracing.OutcomeSpan)},
		"request":       {Emission{TopicRequests, 0, &schemas.Request{Kind: schemas.RequestRefill, GroupID: 7, RolloutIndex: 2, Attempt: 1}}, root.Played(0)},
		"wave":          {Emission{TopicRequests, 0, &schemas.Request{Kind: schemas.RequestWave, Step: 3}}, tracing.Context{}},
		"batch":         {Emission{TopicBatches, 0, &schemas.MicroBatch{Step: 3}}, tr.Step(3)},
		"policy":        {Emission{TopicPolicies, 0, &schemas.PolicyVersion{Version: 3, Step: 3}}, tr.Step(3).Child(tracing.TrainSpan).Child(tracing.PublishSpan)},
		"version 0":     {Emission{TopicPolicies, 0, &schemas.PolicyVersion{}}, tracing.Context{}},
		"metric":        {Emission{TopicMetrics, 0, &schemas.MetricPoint{Name: "x"}}, tracing.Context{}},
	} {
		r, err := rt.Encode(t.Context(), c.e)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if got := rt.coordinates(r).Trace; got != c.want {
			t.Errorf("%s carries %v, want %v", name, got, c.want)
		}
		if has := len(r.Headers) > 0; has != c.want.Valid() {
			t.Errorf("%s has the headers %v", name, r.Headers)
		}
		plain, err := (&Runtime{Run: rt.Run}).Encode(t.Context(), c.e)
		if err != nil || len(plain.Headers) > 0 || string(plain.Value) != string(r.Value) || string(plain.Key) != string(r.Key) || plain.Partition != r.Partition {
			t.Errorf("%s is another record where it is traced (%v)", name, err)
		}
		if got := (&Runtime{Run: rt.Run}).coordinates(r).Trace; got.Valid() {
			t.Errorf("%s: who does not trace reads %v", name, got)
		}
	}
	rt, _ = traced(t, 0)
	r, err := rt.Encode(t.Context(), Emission{TopicTasks("catch"), 0, &schemas.Task{Env: "catch", GroupID: 7, GroupSize: 8}})
	if err != nil || len(r.Headers) > 0 {
		t.Errorf("a group that is not traced has %v, %v", r.Headers, err)
	}
	r.Headers = []kgo.RecordHeader{{Key: tracing.Header, Value: []byte("garbage")}, {Key: "other", Value: nil}}
	if rec, err := rt.Decode(t.Context(), r); err != nil || rec.Trace.Valid() || rec.Value == nil {
		t.Errorf("a broken header: %+v, %v", rec, err)
	}
}

// TestSpansOfOtherEnds makes the spans that a run in order does not show: tasks for whole groups, refills, rollouts that the emitter
// gave up, and what was dropped.
func TestSpansOfOtherEnds(t *testing.T) {
	rt, c := traced(t, 1)
	start := time.Unix(1000, 0)
	fate := schemas.RolloutFate{RolloutIndex: 1, Attempt: 1, Fate: schemas.FateStale, Error: "model: away"}
	rt.TraceCommitted("emitter", []Emission{
		{Value: &schemas.Task{Env: "pairs", GroupID: 1, GroupSize: 2, RolloutIndex: -1}},
		{Value: &schemas.Task{Env: "catch", GroupID: 2, GroupSize: 4, RolloutIndex: 1, Attempt: 1}},
		{Value: &schemas.Trace{Env: "catch", GroupID: 3, RolloutIndex: 0, Errors: []schemas.TraceError{{Type: schemas.ErrorTimedOut, Message: "open too long"}}}},
		{Value: &schemas.MetricPoint{}},
	}, start, start.Add(time.Second))
	rt.TraceCommitted("scorer", []Emission{{Value: &schemas.SampleGroup{Env: "catch", GroupID: 2, Reason: schemas.FateErrored, Rollouts: []schemas.RolloutFate{fate}}}}, start, start)
	rt.TraceCommitted("packer", []Emission{{Value: &schemas.GroupOutcome{Env: "catch", GroupID: 2, Fate: schemas.FateStale, Rollouts: []schemas.RolloutFate{fate}}}}, start, start)
	rt.Tracing.Flush()
	by := map[tracing.Context]collector.Span{}
	for _, s := range c.Spans() {
		by[s.Context()] = s
		if s.StartTimeUnixNano != uint64(start.UnixNano()) {
			t.Errorf("%s starts at %d", s.Name, s.StartTimeUnixNano)
		}
	}
	group := rt.Tracing.Rollout(tracing.Rollout{Group: 1, Index: -1})
	if by[group].Name != tracing.TaskSpan {
		t.Errorf("the group's task is %v", by[group])
	}
	for i := range 2 {
		root := rt.Tracing.Rollout(tracing.Rollout{Group: 1, Index: i})
		if s := by[root]; s.Name != tracing.TaskSpan || s.Link(0) != group || s.Number("prl.rollout") != int64(i) {
			t.Errorf("rollout %d of the group has the task %v", i, s)
		}
	}
	root := rt.Tracing.Rollout(tracing.Rollout{Group: 2, Index: 1})
	if s := by[root.Task(1).Context]; s.Name != tracing.TaskSpan || s.Parent() != root.Played(0) {
		t.Errorf("the refill is %v", s)
	}
	scored := by[root.Child(tracing.ScoredSpan)]
	if scored.Parent() != root.Played(1) || scored.Status.GetMessage() != "model: away" {
		t.Errorf("the score is %v", scored)
	}
	if s := by[root.Child(tracing.OutcomeSpan)]; s.Parent() != scored.Context() || s.Text("prl.fate") != schemas.FateStale || s.Has("prl.step") {
		t.Errorf("the outcome is %v", s)
	}
	ended := rt.Tracing.Rollout(tracing.Rollout{Group: 3, Index: 0})
	if s := by[ended.Child(tracing.EndSpan, 0)]; s.Parent() != ended || s.Text("error.type") != schemas.ErrorTimedOut {
		t.Errorf("what the emitter gave up is %v", s)
	}
	if len(by) != 3+1+1+2+2 {
		t.Errorf("%d spans", len(by))
	}
}

// TestSpansAreOfCommittedWork aborts a transaction, which is done again: its spans come once, with the one that is committed.
func TestSpansAreOfCommittedWork(t *testing.T) {
	rt, cluster := testRuntime(t)
	of, c := traced(t, 1)
	rt.Tracing = of.Tracing
	produce(t, rt, pairsOf(0, 20)...)
	fired := fault{kmsg.TxnOffsetCommit, kerr.UnknownServerError, 1, 2}.inject(t, rt, cluster)
	stop := start(t, rt, toyConfig())
	groups := committed(t, rt, TopicSamples, 20)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	if fired() == 0 {
		t.Fatal("no transaction was aborted")
	}
	rt.Tracing.Flush()
	seen := map[tracing.Context]int{}
	for _, s := range c.Spans() {
		seen[s.Context()]++
	}
	for _, g := range groups {
		if n := seen[g.Trace]; n != 1 || spanOf(rt.Tracing, g.Value) != g.Trace {
			t.Errorf("%v carries %v, of which there are %d spans", g.Ref, g.Trace, n)
		}
	}
}
