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
	near("pass@2", got.PassAtK, (1+0)/2.0)                                                 // the second example has one rollout only
	near("stderr of avg@2", got.AvgStderr, math.Sqrt((0.55*0.55+0.25*0.25+0.8*0.8)/9/2/3)) // 0.6, 0.5, 0.15 around 1.25/3
	near("stderr of pass@2", got.PassStderr, 0.5)                                          // √(0.5/2): 1 and 0 around 0.5
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
	f.add(taskKey{index: 0}, []*rollout{newRollout(&schemas.Trace{Errors: []schemas.TraceError{{Type: schemas.ErrorCancelled}}}, 0)})
	f.add(taskKey{index: 1}, []*rollout{newRollout(&schemas.Trace{}, 0)}) // no reward applies
	var res schemas.EvalResult
	f.write(&res)
	if res.AvgStderr != 0 || res.PassStderr != 0 || res.AvgAtK != 0 || res.PassAtK != 0 || res.Episodes != 1 || res.Errored != 1 {
		t.Errorf("%+v", res)
	}
}

// TestStandardError is over tasks: rollouts of one example that agree are one piece of evidence, not k, and so are
// examples of one task.
func TestStandardError(t *testing.T) {
	const big = 1e9 // far from 0, so that sums of squares would cancel
	for _, c := range []struct {
		name    string
		tasks   int64
		rewards [][]float64
		want    float64
	}{
		{"nothing", 9, nil, 0},
		{"one example", 9, [][]float64{{1, 0}}, 0},
		{"all alike", 9, [][]float64{{1}, {1}, {1}}, 0},
		{"four examples", 9, [][]float64{{1}, {0}, {1}, {0}}, math.Sqrt(1.0 / 3 / 4)},
		{"four examples of three rollouts", 9, [][]float64{{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {0, 0, 0}}, math.Sqrt(1.0 / 3 / 4)},
		{"spread within examples only", 9, [][]float64{{1, 0}, {0, 1}}, 0},
		{"far from 0", 9, [][]float64{{big + 1}, {big}, {big + 1}, {big}}, math.Sqrt(1.0 / 3 / 4)},
		{"two tasks, twice", 2, [][]float64{{1}, {0}, {1}, {0}}, 0.5}, // of 1 and 0: √(0.5/2)
		{"one task again and again", 1, [][]float64{{1}, {0}, {1}, {0}}, 0},
		{"two of one task, one of another", 2, [][]float64{{1}, {0}, {0}}, math.Sqrt(2.0*2/9) / 3}, // ±1/3 twice, and G = 2
	} {
		f := newFigures(1, 2)
		for i, rewards := range c.rewards {
			var rollouts []*rollout
			for _, r := range rewards {
				rollouts = append(rollouts, newRollout(&schemas.Trace{Reward: &r}, 0))
			}
			f.add(taskKey{schemas.SplitEval, int64(i) % c.tasks}, rollouts)
		}
		var res schemas.EvalResult
		if f.write(&res); math.Abs(res.AvgStderr-c.want) > 1e-9 {
			t.Errorf("%s: %v, want %v", c.name, res.AvgStderr, c.want)
		}
	}
}

// Tasks of two splits that have the same index are two tasks.
func TestStandardErrorOfTwoSplits(t *testing.T) {
	w := byHand(t, func(p *Plan) {
		p.Games, p.Config.Examples, p.Config.K = []Game{{schemas.SplitTrain, 7, 70}, {schemas.SplitEval, 7, 70}}, 2, 1
	})
	w.next(-1, func(task *schemas.Task) *schemas.Trace { return play(task, 0, float64(task.GroupID)) })
	if r := w.result(); r.AvgStderr != 0.5 { // of 0 and 1: √(0.5/2)
		t.Errorf("standard error %v", r.AvgStderr)
	}
}
