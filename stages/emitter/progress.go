package emitter

import (
	"fmt"
	"math"
)

// ProgressConfig is the section [emitter.progress].
type ProgressConfig struct {
	// Fast and Slow are the weights of the newest group in the two moving averages of an environment's reward.
	Fast float64 `toml:"fast"`
	Slow float64 `toml:"slow"`
	// Floor is the part of all groups that is shared by the ratios whatever is learnt.
	Floor float64 `toml:"floor"`
}

// DefaultProgressConfig looks at what the last 10 groups of an environment have changed against the last 100.
func DefaultProgressConfig() ProgressConfig { return ProgressConfig{Fast: 0.1, Slow: 0.01, Floor: 0.2} }

func (c ProgressConfig) validate() error {
	switch {
	case !(c.Slow > 0 && c.Slow < c.Fast && c.Fast <= 1):
		return fmt.Errorf("emitter.progress: slow = %v, fast = %v: 0 < slow < fast ≤ 1", c.Slow, c.Fast)
	case !(c.Floor > 0 && c.Floor <= 1):
		return fmt.Errorf("emitter.progress.floor = %v: above 0, or an environment could starve, and at most 1", c.Floor)
	}
	return nil
}

// Progress prefers environments in which the policy is changing: Teacher–Student Curriculum Learning (arXiv:1707.00183)
// in its simplest form. The progress of an environment is |fast - slow| / scale, of two moving averages of its groups'
// mean reward and the largest size of a mean seen; the absolute value, so that what is being forgotten is practised
// again. With b the shares by the ratios and p the progress of each environment plus a hundredth, shares are
//
//	floor·b + (1 - floor)·b·p / Σ b·p
//
// so that they go back to b where nothing changes. An environment without a reward yet counts with the mean of the
// others.
type Progress struct {
	WeightedRoundRobin
	cfg  ProgressConfig
	envs averages // fast, slow, scale
}

// Weights are shares: they sum to 1.
func (p *Progress) Weights(envs []MixEnv) ([]float64, error) {
	weights, err := p.WeightedRoundRobin.Weights(envs)
	if err != nil {
		return nil, err
	}
	progress, all, known := make([]float64, len(envs)), 0.0, 0.0
	for i, env := range envs {
		if a, ok := p.envs[env.Name]; ok {
			progress[i] = math.Abs(a[0]-a[1]) / max(a[2], math.SmallestNonzeroFloat64)
			all += progress[i]
			known++
		}
	}
	sum, moved := 0.0, 0.0
	for i, env := range envs {
		if _, ok := p.envs[env.Name]; !ok && known > 0 {
			progress[i] = all / known
		}
		progress[i] += 0.01
		sum += weights[i]
		moved += weights[i] * progress[i]
	}
	for i, w := range weights {
		weights[i] = p.cfg.Floor*w/sum + (1-p.cfg.Floor)*w*progress[i]/moved
	}
	return weights, nil
}

// Learn moves the averages of an environment.
func (p *Progress) Learn(env string, r Result) {
	if len(r.Rewards) == 0 {
		return
	}
	reward := mean(r.Rewards)
	a, ok := p.envs[env]
	if !ok {
		a[0], a[1] = reward, reward
	}
	move(&a[0], reward, p.cfg.Fast)
	move(&a[1], reward, p.cfg.Slow)
	a[2] = max(a[2], math.Abs(reward))
	p.envs[env] = a
}

// State is the averages.
func (p *Progress) State() []byte { return p.envs.state() }

// Restore takes the averages.
func (p *Progress) Restore(state []byte) error { return p.envs.restore(state) }
