package stages

import (
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/collector"
	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
)

// untraced are the weights with which the small run ends that is not traced.
var untracedWeights struct {
	sync.Once
	text string
}

func untraced(t *testing.T) string {
	untracedWeights.Do(func() { untracedWeights.text, _ = smallRun(t, nil) })
	return untracedWeights.text
}

// unique are the spans of a collector by what they name; two of one name are an error.
func unique(t *testing.T, c *collector.Collector) map[tracing.Context]collector.Span {
	t.Helper()
	all := map[tracing.Context]collector.Span{}
	for _, s := range c.Spans() {
		if old, ok := all[s.Context()]; ok {
			t.Errorf("%s of %s has the ids of %s of %s", s.Name, s.Service, old.Name, old.Service)
		}
		all[s.Context()] = s
	}
	return all
}

// TestOneRolloutThroughAllStages takes a whole run with a collector: a rollout's trace has a span of every stage, under the one
// before, and links lead to its group and to the step that trained it.
func TestOneRolloutThroughAllStages(t *testing.T) {
	c := collector.Start(t)
	weights, app := smallRun(t, nil, "tracing.endpoint="+c.URL)
	app.Runtime.Tracing.Flush()
	if plain := untraced(t); weights != plain {
		t.Errorf("a run that is traced ends with weights %s, another with %s", weights, plain)
	}
	spans := unique(t, c)
	names := map[string]int{}
	for _, s := range spans {
		names[s.Service+" "+s.Name]++
	}
	t.Logf("%d spans: %v", len(spans), names)
	packed := 0
	for _, o := range records[*schemas.GroupOutcome](t, app, pipeline.TopicOutcomes) {
		for _, f := range o.Rollouts {
			root := app.Runtime.Tracing.Rollout(tracing.Rollout{Eval: o.Eval, Group: o.GroupID, Index: f.RolloutIndex})
			at := holdTrace(t, spans, root, o, f)
			if f.Fate == schemas.FatePacked {
				packed++
				holdStep(t, spans, app.Runtime.Tracing.Step(*o.Step), at, *o.Step)
			}
		}
	}
	if packed == 0 {
		t.Error("no rollout was packed")
	}
}

// holdTrace holds the trace of a rollout to its outcome, and gives the span of that.
func holdTrace(t *testing.T, spans map[tracing.Context]collector.Span, root tracing.Context, o *schemas.GroupOutcome, f schemas.RolloutFate) collector.Span {
	t.Helper()
	find := func(service, name string, c tracing.Context, parent tracing.Context) collector.Span {
		t.Helper()
		s, ok := spans[c]
		switch {
		case !ok:
			t.Fatalf("group %s%d rollout %d has no span %s", o.Eval, o.GroupID, f.RolloutIndex, name)
		case s.Name != name || s.Service != service:
			t.Fatalf("span %s of %s, want %s of %s", s.Name, s.Service, name, service)
		case parent.Valid() && string(s.ParentSpanId) != string(parent.Span[:]) || !parent.Valid() && len(s.ParentSpanId) > 0:
			t.Fatalf("%s of %s has the parent %x, want %v", name, service, s.ParentSpanId, parent)
		case s.EndTimeUnixNano < s.StartTimeUnixNano || s.StartTimeUnixNano == 0:
			t.Errorf("%s of %s: from %d to %d", name, service, s.StartTimeUnixNano, s.EndTimeUnixNano)
		case s.Number("prl.group") != o.GroupID || s.Number("prl.rollout") != int64(f.RolloutIndex) || s.Text("prl.env") != o.Env:
			t.Errorf("%s of %s: %v", name, service, s.Attributes)
		}
		return s
	}
	emitter, decider := "prl.emitter", "prl.packer"
	if o.Eval != "" {
		emitter, decider = "prl.eval", "prl.eval"
	}
	task := find(emitter, tracing.TaskSpan, root, tracing.Context{}).Context()
	if f.Attempt > 0 {
		task = root.Task(f.Attempt).Context
	}
	rollout := find("prl.envserver", tracing.RolloutSpan, root.Played(f.Attempt), task)
	parts := map[string]int{}
	for c, s := range spans {
		if c.Trace == root.Trace && string(s.ParentSpanId) == string(rollout.SpanId) {
			parts[s.Name]++
			if s.Name == tracing.CallSpan {
				holdCall(t, spans, s)
			}
		}
	}
	if parts[tracing.SetupSpan] != 1 || parts[tracing.ScoreSpan] != 1 || parts[tracing.CallSpan] == 0 || parts[tracing.EnvironmentSpan] == 0 {
		t.Errorf("a rollout has the parts %v", parts)
	}
	last := rollout.Context()
	if o.Eval == "" {
		scored := find("prl.scorer", tracing.ScoredSpan, root.Child(tracing.ScoredSpan), last)
		group, ok := spans[scored.Link(0)]
		if !ok || group.Name != tracing.ScoreGroupSpan || !group.LinksTo(rollout.Context()) {
			t.Errorf("the group's score does not lead to the rollout, nor back")
		}
		last = scored.Context()
	}
	return find(decider, tracing.OutcomeSpan, root.Child(tracing.OutcomeSpan), last)
}

// holdCall holds a model call to what the inference stage says of it.
func holdCall(t *testing.T, spans map[tracing.Context]collector.Span, call collector.Span) {
	t.Helper()
	for c, s := range spans {
		if string(c.Trace[:]) == string(call.TraceId) && string(s.ParentSpanId) == string(call.SpanId) {
			if s.Service != "prl.inference" || !s.Has("prl.queue_seconds") || !s.Has("prl.prefill_seconds") || !s.Has("prl.decode_seconds") {
				t.Errorf("a model call is answered by %s %s with %v", s.Service, s.Name, s.Attributes)
			}
			return
		}
	}
	t.Error("a model call has no answer")
}

// holdStep holds what packed and trained a rollout to the step.
func holdStep(t *testing.T, spans map[tracing.Context]collector.Span, pack tracing.Context, outcome collector.Span, step int64) {
	t.Helper()
	train := pack.Child(tracing.TrainSpan)
	publish := train.Child(tracing.PublishSpan)
	at := outcome.Context()
	packed, trained, out := spans[pack], spans[train], spans[publish]
	if packed.Span == nil || trained.Span == nil || out.Span == nil {
		t.Fatalf("step %d was packed %v, trained %v, published %v", step, packed, trained, out)
	}
	if packed.Service != "prl.packer" || trained.Service != "prl.trainer" || out.Service != "prl.trainer" || out.Number("prl.version") != step ||
		string(trained.ParentSpanId) != string(pack.Span[:]) || string(out.ParentSpanId) != string(train.Span[:]) {
		t.Errorf("step %d: %v, %v, %v", step, packed, trained, out)
	}
	if !outcome.LinksTo(pack) || !packed.LinksTo(at) || !trained.LinksTo(at) {
		t.Errorf("step %d and its rollout are not linked", step)
	}
	for _, s := range spans {
		if s.Name == tracing.TrainedSpan && string(s.ParentSpanId) == string(at.Span[:]) {
			if !s.LinksTo(train) || s.Service != "prl.trainer" {
				t.Errorf("a training of %s leads to %v", s.Service, s.Links)
			}
			return
		}
	}
	t.Errorf("a rollout packed into step %d was not trained", step)
}

// headers puts a header that no program writes into every record that is produced.
type headers struct {
	mu     sync.Mutex
	values []string
	given  int
}

// OnProduceRecordBuffered implements kgo.HookProduceRecordBuffered.
func (h *headers) OnProduceRecordBuffered(r *kgo.Record) {
	h.mu.Lock()
	defer h.mu.Unlock()
	r.Headers = append(slices.Clip(r.Headers), kgo.RecordHeader{Key: tracing.Header, Value: []byte(h.values[h.given%len(h.values)])})
	h.given++
}

// TestHostileHeaders gives every record a header that is broken, too long or of a stranger's trace, beside its own or in place of
// one, in a run of which half of the groups are traced: it ends as if there were none, and a group is traced as a whole or not.
func TestHostileHeaders(t *testing.T) {
	h := &headers{values: []string{
		"", "00", "\xff\x00", strings.Repeat("0", 1<<16), "00-00000000000000000000000000000000-0000000000000000-01",
		"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
	}}
	c := collector.Start(t)
	weights, app := smallRun(t, func(a *App) { a.Runtime.Options = append(a.Runtime.Options, kgo.WithHooks(h)) },
		"tracing.endpoint="+c.URL, "tracing.sample_ratio=0.5")
	app.Runtime.Tracing.Flush()
	if plain := untraced(t); weights != plain {
		t.Errorf("headers change the weights: %s, %s without", weights, plain)
	}
	if h.given == 0 || traceHeaders(t, app, "broken") == 0 || traceHeaders(t, app, "read") == 0 {
		t.Errorf("%d headers given, %v broken, %v read", h.given, traceHeaders(t, app, "broken"), traceHeaders(t, app, "read"))
	}
	of := map[tracing.Rollout]map[string]bool{} // names of the spans of rollouts
	for _, s := range unique(t, c) {
		if r := (tracing.Rollout{Eval: s.Text("prl.eval"), Group: s.Number("prl.group"), Index: int(s.Number("prl.rollout"))}); r.Index >= 0 {
			if of[r] == nil {
				of[r] = map[string]bool{}
			}
			of[r][s.Service+" "+s.Name] = true
			if root := app.Runtime.Tracing.Rollout(r); root.Trace != s.Context().Trace {
				t.Errorf("%s of %v is in the trace %v, want %v", s.Name, r, s.Context().Trace, root.Trace)
			}
		}
	}
	traced, left := 0, 0
	for _, o := range records[*schemas.GroupOutcome](t, app, pipeline.TopicOutcomes) {
		whole := app.Runtime.Tracing.Rollout(tracing.Rollout{Eval: o.Eval, Group: o.GroupID, Index: -1}).Valid()
		if whole {
			traced++
		} else {
			left++
		}
		for _, f := range o.Rollouts {
			names := of[tracing.Rollout{Eval: o.Eval, Group: o.GroupID, Index: f.RolloutIndex}]
			if whole != (len(names) > 0) || whole && !names["prl.envserver "+tracing.RolloutSpan] {
				t.Errorf("group %s%d is traced: %v; its rollout %d has the spans %v", o.Eval, o.GroupID, whole, f.RolloutIndex, names)
			}
		}
	}
	if traced == 0 || left == 0 {
		t.Errorf("%d groups are traced and %d are not", traced, left)
	}
}

// TestCollectorAway runs with nothing where the collector should be: the run is what it would be, and the spans are counted.
func TestCollectorAway(t *testing.T) {
	c := collector.Start(t)
	c.Close()
	weights, app := smallRun(t, nil, "tracing.endpoint="+c.URL, "tracing.timeout=200ms")
	app.Runtime.Tracing.Flush()
	if plain := untraced(t); weights != plain {
		t.Errorf("weights %s, %s with nothing traced", weights, plain)
	}
	if lost := counter(t, app, "prl_process_spans_total", "failed"); lost == 0 {
		t.Error("no span was lost")
	}
}

func traceHeaders(t *testing.T, app *App, result string) float64 {
	return counter(t, app, "prl_process_trace_headers_total", result)
}

// counter is the value of a counter with a label result.
func counter(t *testing.T, app *App, name, result string) float64 {
	t.Helper()
	all, err := app.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range all {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "result" && l.GetValue() == result {
					return m.GetCounter().GetValue()
				}
			}
		}
	}
	return 0
}
