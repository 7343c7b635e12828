package pipeline

import (
	"cmp"
	"slices"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
)

// TraceCommitted makes the spans of what a stage wrote in a transaction that is committed.
func (rt *Runtime) TraceCommitted(stage string, emitted []Emission, start, end time.Time) {
	if rt.Tracing == nil {
		return
	}
	var spans []tracing.Span
	steps := map[int64]*tracing.Span{}
	for _, e := range emitted {
		switch v := e.Value.(type) {
		case *schemas.Task:
			spans = append(spans, rt.taskSpans(v)...)
		case *schemas.Trace:
			spans = append(spans, rt.endSpan(v))
		case *schemas.SampleGroup:
			spans = append(spans, rt.scoreSpans(v)...)
		case *schemas.GroupOutcome:
			spans = append(spans, rt.outcomeSpans(v)...)
		case *schemas.MicroBatch:
			s := steps[v.Step]
			if s == nil {
				s = &tracing.Span{Context: rt.Tracing.Step(v.Step), Name: tracing.PackSpan, Kind: tracing.Producer,
					Attributes: []attribute.KeyValue{tracing.Step.Int64(v.Step), tracing.Batches.Int(v.Count * v.Ranks)}}
				steps[v.Step] = s
			}
			s.Links = append(s.Links, rt.samplesOf(v)...)
		}
	}
	for _, s := range steps {
		s.Links = distinct(s.Links)
		spans = append(spans, *s)
	}
	spans = slices.DeleteFunc(spans, func(s tracing.Span) bool { return !s.Valid() })
	for i := range spans {
		spans[i].Start, spans[i].End = start, end
	}
	rt.Tracing.Emit(stage, spans...)
}

// A Training is a step that this process has trained.
type Training struct {
	Step    int64
	Samples []schemas.PackedSample // that it trained; nil where nothing is traced
	Begun   time.Time
	Trained time.Time
	Skipped bool // nothing was updated
}

// TraceTrained makes the spans of a training: those of its rollouts, and where this process has published its version, which is
// -1 otherwise, those of the step.
func (rt *Runtime) TraceTrained(stage string, t Training, version int64, published time.Time) {
	if rt.Tracing == nil {
		return
	}
	root := rt.Tracing.Step(t.Step)
	train := root.Under(tracing.TrainSpan)
	var spans []tracing.Span
	train.Kind, train.Start, train.End = tracing.Consumer, t.Begun, t.Trained
	train.Attributes = []attribute.KeyValue{tracing.Step.Int64(t.Step), tracing.Samples.Int(len(t.Samples)), tracing.Skipped.Bool(t.Skipped)}
	seen := map[tracing.Rollout]bool{}
	for _, p := range t.Samples {
		r := tracing.Rollout{Group: p.GroupID, Index: p.RolloutIndex}
		of := rt.Tracing.Rollout(r)
		if seen[r] || !of.Valid() {
			continue
		}
		seen[r] = true
		s := of.Trained()
		s.Kind, s.Start, s.End, s.Links = tracing.Consumer, t.Begun, t.Trained, []tracing.Context{train.Context}
		s.Attributes = append(about(p.Env, "", p.GroupID), tracing.Step.Int64(t.Step), tracing.Index.Int(p.RolloutIndex))
		spans, train.Links = append(spans, s), append(train.Links, of.Outcome().Context)
	}
	if version >= 0 {
		publish := train.Under(tracing.PublishSpan)
		publish.Kind, publish.Start, publish.End = tracing.Producer, t.Trained, published
		publish.Attributes = []attribute.KeyValue{tracing.Step.Int64(t.Step), tracing.Version.Int64(version)}
		spans = append(spans, train, publish)
	}
	rt.Tracing.Emit(stage, spans...)
}

// taskSpans are those of a task in the traces of its rollouts, and of one for a whole group in that of the group.
func (rt *Runtime) taskSpans(t *schemas.Task) (spans []tracing.Span) {
	indices := []int{t.RolloutIndex}
	for i := range t.GroupSize {
		if t.RolloutIndex < 0 {
			indices = append(indices, i)
		}
	}
	for _, i := range indices {
		s := rt.Tracing.Rollout(tracing.Rollout{Eval: t.Eval, Group: t.GroupID, Index: i}).Task(t.Attempt)
		s.Kind = tracing.Producer
		s.Attributes = append(about(t.Env, t.Eval, t.GroupID), tracing.GroupSize.Int(t.GroupSize), tracing.Attempt.Int(t.Attempt), tracing.TaskIndex.Int64(t.TaskIndex))
		if i >= 0 {
			s.Attributes = append(s.Attributes, tracing.Index.Int(i))
		}
		if t.RolloutIndex < 0 && i >= 0 {
			s.Links = []tracing.Context{spanOf(rt.Tracing, t)}
		}
		if t.Step > 0 {
			s.Attributes = append(s.Attributes, tracing.Step.Int64(t.Step))
		}
		spans = append(spans, s)
	}
	return spans
}

// endSpan is of a rollout that a core has ended.
func (rt *Runtime) endSpan(t *schemas.Trace) tracing.Span {
	root := rt.Tracing.Rollout(tracing.Rollout{Eval: t.Eval, Group: t.GroupID, Index: t.RolloutIndex})
	s := tracing.Span{Context: root.Child(tracing.EndSpan, t.Attempt), Parent: root.Task(t.Attempt).Span, Name: tracing.EndSpan, Kind: tracing.Producer}
	s.Attributes = append(about(t.Env, t.Eval, t.GroupID), tracing.Index.Int(t.RolloutIndex), tracing.Attempt.Int(t.Attempt))
	if len(t.Errors) > 0 {
		s.Error = t.Errors[0].Message
		s.Attributes = append(s.Attributes, tracing.ErrorType.String(t.Errors[0].Type))
	}
	return s
}

// scoreSpans are those of a scored group: its own, with links to its rollouts, and one in the trace of each.
func (rt *Runtime) scoreSpans(g *schemas.SampleGroup) []tracing.Span {
	group := tracing.Span{Context: spanOf(rt.Tracing, g), Name: tracing.ScoreGroupSpan, Kind: tracing.Consumer}
	if !group.Valid() {
		return nil
	}
	group.Attributes = append(about(g.Env, "", g.GroupID), tracing.TaskIndex.Int64(g.TaskIndex), tracing.Samples.Int(len(g.Samples)),
		tracing.Fate.String(g.Reason), tracing.Filter.String(g.Filter))
	spans := []tracing.Span{group}
	for _, f := range g.Rollouts {
		root := rt.Tracing.Rollout(tracing.Rollout{Group: g.GroupID, Index: f.RolloutIndex})
		spans[0].Links = append(spans[0].Links, root.Played(f.Attempt))
		s := root.Scored(f.Attempt)
		s.Kind, s.Links, s.Attributes = tracing.Consumer, []tracing.Context{group.Context}, fateOf(about(g.Env, "", g.GroupID), f)
		if a, ok := advantage(g, f.RolloutIndex); ok {
			s.Attributes = append(s.Attributes, tracing.Advantage.Float64(a))
		}
		if f.Error != "" {
			s.Error = f.Error
		}
		spans = append(spans, s)
	}
	return spans
}

// outcomeSpans are those of a group's fate: its own, and one in the trace of each of its rollouts.
func (rt *Runtime) outcomeSpans(o *schemas.GroupOutcome) []tracing.Span {
	group := tracing.Span{Context: spanOf(rt.Tracing, o), Name: tracing.OutcomeSpan, Kind: tracing.Consumer}
	if !group.Valid() {
		return nil
	}
	if o.Eval == "" {
		group.Parent = rt.Tracing.Rollout(tracing.Rollout{Group: o.GroupID, Index: -1}).Child(tracing.ScoreGroupSpan).Span
	}
	var step []attribute.KeyValue
	var pack tracing.Context
	if o.Step != nil {
		step, pack = []attribute.KeyValue{tracing.Step.Int64(*o.Step)}, rt.Tracing.Step(*o.Step)
	}
	group.Attributes = slices.Concat(about(o.Env, o.Eval, o.GroupID), step, []attribute.KeyValue{
		tracing.TaskIndex.Int64(o.TaskIndex), tracing.Fate.String(o.Fate), tracing.Filter.String(o.Filter)})
	group.Links = []tracing.Context{pack}
	spans := []tracing.Span{group}
	for _, f := range o.Rollouts {
		root := rt.Tracing.Rollout(tracing.Rollout{Eval: o.Eval, Group: o.GroupID, Index: f.RolloutIndex})
		s := root.Outcome()
		if o.Eval != "" { // nothing scores it apart
			s.Parent = root.Played(f.Attempt).Span
		}
		s.Kind, s.Attributes = tracing.Consumer, append(fateOf(about(o.Env, o.Eval, o.GroupID), f), tracing.Filter.String(o.Filter))
		if s.Links = []tracing.Context{group.Context}; f.Fate == schemas.FatePacked {
			s.Links, s.Attributes = append(s.Links, pack), append(s.Attributes, step...)
		}
		spans = append(spans, s)
	}
	return spans
}

// samplesOf are the spans in which the samples of a micro-batch got their fate.
func (rt *Runtime) samplesOf(m *schemas.MicroBatch) (links []tracing.Context) {
	for _, p := range m.Samples {
		if root := rt.Tracing.Rollout(tracing.Rollout{Group: p.GroupID, Index: p.RolloutIndex}); root.Valid() {
			links = append(links, root.Outcome().Context)
		}
	}
	return links
}

func distinct(links []tracing.Context) []tracing.Context {
	slices.SortFunc(links, func(a, b tracing.Context) int {
		return cmp.Or(slices.Compare(a.Trace[:], b.Trace[:]), slices.Compare(a.Span[:], b.Span[:]))
	})
	return slices.Compact(links)
}

func about(env, eval string, group int64) []attribute.KeyValue {
	list := []attribute.KeyValue{tracing.Env.String(env), tracing.Group.Int64(group)}
	if eval != "" {
		list = append(list, tracing.Eval.String(eval))
	}
	return list
}

func fateOf(list []attribute.KeyValue, f schemas.RolloutFate) []attribute.KeyValue {
	list = append(list, tracing.Index.Int(f.RolloutIndex), tracing.Attempt.Int(f.Attempt), tracing.Fate.String(f.Fate), tracing.Tokens.Int(f.Tokens), tracing.Truncated.Bool(f.Truncated))
	if f.Reward != nil {
		list = append(list, tracing.Reward.Float64(*f.Reward))
	}
	if f.PolicyStart != nil {
		list = append(list, tracing.Start.Int64(*f.PolicyStart))
	}
	return list
}

// advantage is the mean over the trained tokens of a rollout's samples, where it has such and they are not in the blob store.
func advantage(g *schemas.SampleGroup, rollout int) (mean float64, ok bool) {
	n := 0
	for _, s := range g.Samples {
		if s.RolloutIndex != rollout || len(s.Advantages) != 4*len(s.Mask) {
			continue
		}
		for i, a := range s.Advantages.Values() {
			if s.Mask[i] == 1 {
				mean, n = mean+float64(a), n+1
			}
		}
	}
	return mean / float64(max(n, 1)), n > 0
}
