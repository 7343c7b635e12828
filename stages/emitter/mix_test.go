package emitter

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"
)

func TestWeightedRoundRobinDrawsByWeight(t *testing.T) {
	for name, envs := range map[string][]MixEnv{
		"ratios": {{Name: "a", Ratio: ratio(0.5), TrainTasks: 9}, {Name: "b", Ratio: ratio(0), TrainTasks: 1000}, {Name: "c", Ratio: ratio(1.5), TrainTasks: 1}},
		"tasks":  {{Name: "a", TrainTasks: 250}, {Name: "b"}, {Name: "c", TrainTasks: 750}},
	} {
		t.Run(name, func(t *testing.T) {
			weights, err := WeightedRoundRobin{}.Weights(envs)
			if err != nil {
				t.Fatal(err)
			}
			const draws = 20000
			rng, count := rand.New(rand.NewPCG(7, 7)), [3]int{}
			for range draws {
				count[WeightedRoundRobin{}.Pick(weights, rng)]++
			}
			if count[1] != 0 {
				t.Errorf("an environment of weight 0 was drawn %d times", count[1])
			}
			if got, sigma := float64(count[0])/draws, math.Sqrt(0.25*0.75/draws); math.Abs(got-0.25) > 4*sigma {
				t.Errorf("drawn %v, want 0.25 ± %v", got, 4*sigma)
			}
		})
	}
}

func TestWeightedRoundRobinRefuses(t *testing.T) {
	for want, envs := range map[string][]MixEnv{
		"no environments":        nil,
		"1 of 2 environments":    {{Name: "a", Ratio: ratio(1), TrainTasks: 1}, {Name: "b", TrainTasks: 1}},
		"has weight 0":           {{Name: "a", Ratio: ratio(0), TrainTasks: 1}},
		"has no training tasks":  {{Name: "a", Ratio: ratio(1)}},
		"every environment has ": {{Name: "a"}, {Name: "b"}},
	} {
		if _, err := (WeightedRoundRobin{}).Weights(envs); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", envs, err, want)
		}
	}
}
