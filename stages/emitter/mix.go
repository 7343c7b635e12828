package emitter

import (
	"errors"
	"fmt"
	"math/rand/v2"
)

// MixEnv is what a strategy knows of an environment.
type MixEnv struct {
	Name       string
	Ratio      *float64 // as configured; nil where it is not
	TrainTasks int64    // number of training tasks
}

// EnvMixStrategy chooses the environment of the next group. Which task of it is the cursor's matter, not the strategy's.
//
// A strategy must not keep state: the numbers it draws from rng are all that a restart brings back.
type EnvMixStrategy interface {
	// Weights gives each environment's weight, 0 or more, in their order. It is called at start, too, to check the
	// configuration: an error says what to change.
	Weights(envs []MixEnv) ([]float64, error)
	// Pick draws one of the environments by its index. A weight is 0 where the environment must not be picked now; at
	// least one is above 0.
	Pick(weights []float64, rng *rand.Rand) int
}

// WeightedRoundRobin picks at random, by the ratios if all environments have one, by their numbers of training tasks if
// none does. One uniform draw a pick; a weight of zero is never picked.
type WeightedRoundRobin struct{}

// Weights refuses no environments, ratios for some of them only, and weights that are all zero.
func (WeightedRoundRobin) Weights(envs []MixEnv) ([]float64, error) {
	if len(envs) == 0 {
		return nil, errors.New("no environments: add a section [envs.<name>]")
	}
	set := 0
	for _, env := range envs {
		if env.Ratio != nil {
			set++
		}
	}
	if set != 0 && set != len(envs) {
		return nil, fmt.Errorf("envs.*.ratio: %d of %d environments set it; set it for all of them, or for none", set, len(envs))
	}
	weights, sum := make([]float64, len(envs)), 0.0
	for i, env := range envs {
		weights[i] = float64(env.TrainTasks)
		if env.Ratio != nil {
			weights[i] = *env.Ratio
		}
		if weights[i] > 0 && env.TrainTasks == 0 {
			return nil, fmt.Errorf("envs.%s.ratio = %v, but the environment has no training tasks: set it to 0", env.Name, weights[i])
		}
		sum += weights[i]
	}
	if sum == 0 {
		return nil, errors.New("envs.*: every environment has weight 0: raise a ratio")
	}
	return weights, nil
}

// Pick makes one draw over the cumulative weights.
func (WeightedRoundRobin) Pick(weights []float64, rng *rand.Rand) int {
	sum, last := 0.0, 0
	for i, w := range weights {
		sum += w
		if w > 0 {
			last = i
		}
	}
	u, cumulative := rng.Float64()*sum, 0.0
	for i, w := range weights {
		if cumulative += w; w > 0 && u < cumulative {
			return i
		}
	}
	return last // u was rounded up to the sum
}
