package eval

import (
	"math"
	"testing"

	"github.com/prl-project/prl/schemas"
)

func TestPassAtK(t *testing.T) {
	for _, c := range []struct {
		n, c, k int
		want    float64
	}{
		{1, 0, 1, 0}, {1, 1, 1, 1}, {4, 0, 2, 0}, {4, 1, 2, 0.5}, {4, 2, 2, 1 - 1.0/6}, {4, 3, 2, 1},
		{10, 3, 1, 0.3}, {10, 3, 5, 1 - 21.0/252}, {5, 5, 5, 1},
	} {
		if got := passAtK(c.n, c.c, c.k); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("pass@%d of %d with %d correct is %v, want %v", c.k, c.n, c.c, got, c.want)
		}
	}
}

// The figures of three examples with two rollouts each, by hand.
func TestResult(t *testing.T) {
	w := ready(t, func(evals map[string]Config) {
		c := evals["balls"]
		c.Examples, c.Permits, c.PassThreshold = 3, 100, 0.8
		evals["balls"] = c
		delete(evals, "words")
	})
	w.policy(0, false)
	w.tick(second)
	traces := []*schemas.Trace{
		play(w.tasks[0], 0, 1), play(w.tasks[1], 1, 0.2),
		play(w.tasks[2], 0, 0.5), failed(w.tasks[3], 1, "model"),
		play(w.tasks[4], 0, 0), play(w.tasks[5], 1, 0.3),
	}
	applies := 4.0
	traces[0].Rewards["never"] = &applies
	traces[4].Metrics = map[string]float64{"other": 7}
	for i := range traces { // in any order
		w.feed(traces[(i*5+2)%6])
	}
	if len(w.results) != 1 {
		t.Fatalf("%d results", len(w.results))
	}
	got := w.results[0]
	near := func(name string, got, want float64) {
		if math.Abs(got-want) > 1e-12 {
			t.Errorf("%s = %v, want %v", name, got, want)
		}
	}
	near("avg@2", got.AvgAtK, (0.6+0.5+0.15)/3)
	near("pass@2", got.PassAtK, (1+0)/2.0) // the second example has one rollout only
	near("score", got.Rewards["score"], (1+0.2+0.5+0+0.3)/5)
	near("never", got.Rewards["never"], 4)
	near("turns", got.Metrics["turns"], (2+1.2+1.5+1.3)/4)
	near("other", got.Metrics["other"], 7)
	near("random", got.Baselines["random"], 0.3)
	if got.Episodes != 5 || got.Errored != 1 || got.Examples != 3 || got.K != 2 || got.Env != "catch" || got.Version != 0 {
		t.Errorf("result %+v", got)
	}
}

func TestNothingToAverage(t *testing.T) {
	f := newFigures(1, 1)
	f.add([]*rollout{newRollout(&schemas.Trace{Errors: []schemas.TraceError{{Type: schemas.ErrorCancelled}}})})
	f.add([]*rollout{newRollout(&schemas.Trace{})}) // no reward applies
	var res schemas.EvalResult
	f.write(&res)
	if res.AvgAtK != 0 || res.PassAtK != 0 || res.Episodes != 1 || res.Errored != 1 {
		t.Errorf("%+v", res)
	}
}
