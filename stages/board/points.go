package board

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// LabelShadow is the label that names, in the points of a shadow trainer, which it is; their stage is StageShadow.
const (
	LabelShadow = "shadow"
	StageShadow = "shadow"
)

// shadowOf is the shadow trainer whose point it is; empty for the run itself.
func shadowOf(p Point) string {
	m, ok := p.Value.(*schemas.MetricPoint)
	if !ok || m.Stage != StageShadow || !pipeline.ValidName(m.Labels[LabelShadow]) {
		return ""
	}
	return m.Labels[LabelShadow]
}

// eventOf is the event of a point; ok is false where it has none to show.
//
// Tags are <stage>/<name>, then /<value> of each label in the order of the labels: trainer/loss, packer/reward/catch. A shadow
// trainer has the trainer's, in a folder of its own, so that TensorBoard draws the two over each other. Evals are
// eval/<name>/avg_at_k and so on; their step is the policy version.
func eventOf(p Point) (e event, ok bool) {
	e = event{wall: p.Time, topic: p.Topic, offset: p.Offset}
	switch v := p.Value.(type) {
	case *schemas.MetricPoint:
		if _, _, _, fault := pipeline.FaultOf(v); fault {
			return e, false // a notice for the page
		}
		if v.TimeMs > 0 {
			e.wall = time.UnixMilli(v.TimeMs)
		}
		if v.Step != nil {
			e.step = *v.Step
		}
		e.values = []value{{tag: tagOf(v, shadowOf(p)), scalar: v.Value}}
	case *schemas.EvalResult:
		e.step, e.values = v.Version, evalValues(v)
	}
	return e, len(e.values) > 0
}

func tagOf(m *schemas.MetricPoint, shadow string) string {
	parts := []string{m.Stage, m.Name}
	if shadow != "" {
		parts[0] = "trainer"
	}
	for _, name := range slices.Sorted(maps.Keys(m.Labels)) {
		if name != LabelShadow || shadow == "" {
			parts = append(parts, m.Labels[name])
		}
	}
	return strings.Join(parts, "/")
}

func evalValues(r *schemas.EvalResult) (values []value) {
	name := "eval/" + r.Eval
	if r.Policy != "" {
		name += "/" + r.Policy
	}
	add := func(what string, v float64) { values = append(values, value{tag: name + "/" + what, scalar: v}) }
	if !r.AvgMissing {
		add("avg_at_k", r.AvgAtK)
		add("avg_stderr", r.AvgStderr)
	}
	if !r.PassMissing {
		add("pass_at_k", r.PassAtK)
		add("pass_stderr", r.PassStderr)
	}
	add("episodes", float64(r.Episodes))
	add("errored", float64(r.Errored))
	for _, by := range []struct {
		what   string
		values map[string]float64
	}{{"rewards", r.Rewards}, {"metrics", r.Metrics}} {
		for _, k := range slices.Sorted(maps.Keys(by.values)) {
			add(by.what+"/"+k, by.values[k])
		}
	}
	return values
}
