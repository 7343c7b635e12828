package series

import (
	"math"
	"reflect"
	"slices"
	"testing"

	"github.com/prl-project/prl/schemas"
)

func ended(fate string, step int64, versions ...int64) *schemas.GroupOutcome {
	o := &schemas.GroupOutcome{Env: "catch", Fate: fate}
	if step > 0 {
		o.Step = &step
	}
	if fate == schemas.FateFiltered {
		o.Filter = "zero_advantage"
	}
	for _, v := range versions {
		o.Rollouts = append(o.Rollouts, schemas.RolloutFate{Fate: fate, PolicyStart: &v, Tokens: 10})
	}
	return o
}

// TestEnds counts a group that no step trained for the next one, in files of any order.
func TestEnds(t *testing.T) {
	packed, filtered, stale := schemas.FatePacked, schemas.FateFiltered, schemas.FateStale
	first := []*schemas.GroupOutcome{ended(filtered, 0, 0), ended(packed, 1, 0, 0), ended(stale, 0, 0), {Eval: "catch", Fate: schemas.FateEvaluated}, ended(packed, 2, 0, 1), ended(filtered, 0, 1)}
	second := []*schemas.GroupOutcome{ended(filtered, 0, 1), ended(packed, 3, 1, 2), ended(filtered, 0, 2)}
	for name, order := range map[string][][]*schemas.GroupOutcome{"in order": {first, second}, "newest first": {second, first}} {
		r := New()
		for _, list := range order {
			r.Outcomes(list)
		}
		v := r.View(100)
		want := map[string][]int64{"packed": {1, 1, 1, 0}, "filtered:zero_advantage": {1, 0, 2, 1}, "stale": {0, 1, 0, 0}}
		if !slices.Equal(v.Ends.X, []int64{1, 2, 3, 4}) || !reflect.DeepEqual(v.Ends.Ways, want) {
			t.Errorf("%s: %v %v", name, v.Ends.X, v.Ends.Ways)
		}
		if !slices.Equal(v.OffPolicy.All, []int64{4, 2}) || !slices.Equal(v.OffPolicy.Newest, []int64{1, 1}) {
			t.Errorf("%s: off-policy %v, newest %v", name, v.OffPolicy.All, v.OffPolicy.Newest)
		}
		if v.Packed != 3 || v.Counts != (Counts{8, 11, 110}) {
			t.Errorf("%s: step %d, %+v", name, v.Packed, v.Counts)
		}
	}
}

// TestCurve: the last value of a step counts, points come in any order, and a view has the extremes of what it leaves out.
func TestCurve(t *testing.T) {
	r := New()
	point := func(step int64, value float64) {
		r.Metric(&schemas.MetricPoint{Name: "loss", Stage: "trainer", Step: &step, Value: value})
	}
	for _, s := range []int64{5, 6, 7, 1, 2, 3, 4} {
		point(s, float64(s))
	}
	point(3, 30)
	point(8, math.NaN())
	r.Metric(&schemas.MetricPoint{Name: "loss", Stage: "trainer", Value: 1})
	v := r.View(100).Curves
	if len(v) != 1 || !slices.Equal(v[0].X, []int64{1, 2, 3, 4, 5, 6, 7}) || !slices.Equal(v[0].Y, []float64{1, 2, 30, 4, 5, 6, 7}) || v[0].Low != nil {
		t.Errorf("%+v", v)
	}
	v = r.View(2).Curves
	if !slices.Equal(v[0].X, []int64{3, 7}) || !slices.Equal(v[0].Y, []float64{11, 5.5}) || !slices.Equal(v[0].High, []float64{30, 7}) || !slices.Equal(v[0].Low, []float64{1, 4}) {
		t.Errorf("%+v", v[0])
	}
	if mean, ok := r.Last("trainer", "loss", 2); !ok || mean != 6.5 {
		t.Errorf("last %v", mean)
	}
	if list := r.At(3); len(list) != 1 || list[0].Value != 30 {
		t.Errorf("at step 3: %+v", list)
	}
}

// TestInvariant_Bounded: a curve keeps a bounded number of points, and its first and last ones.
func TestInvariant_Bounded(t *testing.T) {
	c := &curve{}
	const n = 3 * maxPoints
	for x := range int64(n) {
		c.add(x, float64(x))
		if len(c.x) > maxPoints {
			t.Fatalf("%d points", len(c.x))
		}
	}
	if c.x[0] != 0 || c.x[len(c.x)-1] != n-1 || c.y[len(c.y)-1] != n-1 || !slices.IsSorted(c.x) {
		t.Errorf("from %d to %d", c.x[0], c.x[len(c.x)-1])
	}
	r := New()
	for i := range 2 * maxCurves {
		r.Metric(&schemas.MetricPoint{Name: "x", Labels: map[string]string{"i": string(rune(i))}, Step: new(int64(1))})
	}
	for s := range int64(maxPoints + 10) {
		r.Outcomes([]*schemas.GroupOutcome{ended(schemas.FatePacked, s+1, s)})
		r.Policy(&schemas.PolicyVersion{Version: s})
	}
	if len(r.curves) > maxCurves || len(r.steps) > maxPoints || len(r.versions) > maxPoints {
		t.Errorf("%d curves, %d steps, %d versions", len(r.curves), len(r.steps), len(r.versions))
	}
}

func TestEvals(t *testing.T) {
	r := New()
	for _, e := range []*schemas.EvalResult{{Eval: "b", Version: 5, AvgAtK: 0.5}, {Eval: "a", Version: 9, AvgAtK: 0.9}, {Eval: "a", Version: 0, AvgAtK: 0.1}, {Eval: "a", Version: 9, AvgAtK: 0.8}, {Eval: "b", Version: 6, AvgMissing: true, PassMissing: true}} {
		r.Eval(e)
	}
	v := r.View(10).Evals
	if len(v) != 2 || v[0].Name != "a" || !slices.Equal(v[0].Version, []int64{0, 9}) || *v[0].Avg[0] != 0.1 || *v[0].Avg[1] != 0.8 || *v[1].Avg[0] != 0.5 || v[1].Avg[1] != nil || v[1].Stderr[1] != nil || v[1].Pass[1] != nil {
		t.Errorf("%+v", v)
	}
}

func TestNumber(t *testing.T) {
	for in, want := range map[float64]float64{0: 0, 1: 1, 0.123456789: 0.123457, -1234567.89: -1234570, 1e-300: 1e-300, math.Inf(1): 0} {
		if got := number(in); got != want {
			t.Errorf("%v is shown as %v", in, got)
		}
	}
}
