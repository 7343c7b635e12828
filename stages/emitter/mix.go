package emitter

import (
	"errors"
	"fmt"
	"math/rand/v2"
)

// MixEnv is what the configuration and the environment say of its part in the mix.
type MixEnv struct {
	Name       string
	Ratio      *float64 // as configured; nil where it is not
	TrainTasks int64    // number of training tasks
}

// Result is how a group did that was scored.
type Result struct {
	Rewards []float64 // of the rollouts that have one; far from infinite
	Tokens  int64     // of all its rollouts
}

// EnvMixStrategy chooses the environment of the next group. Which task of it is the curriculum's matter.
//
// A strategy may learn from outcomes. All that it has learnt stands in its state: a restart brings back that, and the
// numbers it draws from rng. In ordered mode results come in the order of the group ids, a step's before the next step is
// emitted; otherwise in the order of the log of outcomes.
type EnvMixStrategy interface {
	// Weights gives each environment's weight, 0 or more, in their order. It is called at start, too, to check the
	// configuration: an error says what to change.
	Weights(envs []MixEnv) ([]float64, error)
	// Pick draws one of the environments by its index. A weight is 0 where the environment must not be picked now; at
	// least one is above 0.
	Pick(weights []float64, rng *rand.Rand) int
	// Learn takes the result of an environment's group, once.
	Learn(env string, r Result)
	// State is what Restore needs; empty for a strategy that learns nothing.
	State() []byte
	// Restore takes what State gave, to a strategy that has learnt nothing yet. It refuses any other bytes.
	Restore(state []byte) error
}

// Strategies.
const (
	// MixWeighted draws by the ratios.
	MixWeighted = "weighted"
	// MixProgress prefers environments in which the policy is changing (progress.go).
	MixProgress = "progress"
	// MixTokens lets the ratios be shares of tokens, not of rollouts (tokens.go).
	MixTokens = "tokens"
)

var mixes = map[string]func(Config) EnvMixStrategy{
	MixWeighted: func(Config) EnvMixStrategy { return WeightedRoundRobin{} },
	MixProgress: func(c Config) EnvMixStrategy { return &Progress{cfg: c.Progress, envs: averages{}} },
	MixTokens:   func(Config) EnvMixStrategy { return &TokenShares{envs: averages{}} },
}

// WeightedRoundRobin picks at random, by the ratios if all environments have one, by their numbers of training tasks if
// none does. One uniform draw a pick; a weight of zero is never picked. It learns nothing.
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

// Learn does nothing.
func (WeightedRoundRobin) Learn(string, Result) {}

// State is empty.
func (WeightedRoundRobin) State() []byte { return nil }

// Restore takes nothing.
func (WeightedRoundRobin) Restore(state []byte) error {
	if len(state) > 0 {
		return fmt.Errorf("%d bytes for a mix that has no state", len(state))
	}
	return nil
}
