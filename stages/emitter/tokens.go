package emitter

import "fmt"

// TokenShares lets the ratios be shares of the tokens that are trained on: the weight of an environment is that of
// WeightedRoundRobin over the moving average of its groups' tokens. With rollouts of 10,000 tokens beside rollouts of
// 100, equal shares of rollouts make a loss that is 99 % the former's. An environment without a result yet counts with
// the mean of the others.
type TokenShares struct {
	WeightedRoundRobin
	envs averages // tokens of a group; the rest is not used
}

// tokensRate is the weight of the newest group: the average looks back about 50.
const tokensRate = 0.02

// Weights are in groups a token.
func (s *TokenShares) Weights(envs []MixEnv) ([]float64, error) {
	weights, err := s.WeightedRoundRobin.Weights(envs)
	if err != nil {
		return nil, err
	}
	all, known := 0.0, 0.0
	for _, env := range envs {
		if a, ok := s.envs[env.Name]; ok {
			all += a[0]
			known++
		}
	}
	for i, env := range envs {
		switch a, ok := s.envs[env.Name]; {
		case ok:
			weights[i] /= a[0]
		case known > 0:
			weights[i] /= all / known
		}
	}
	return weights, nil
}

// Learn moves the average of an environment; a group has a token at least.
func (s *TokenShares) Learn(env string, r Result) {
	tokens := float64(max(1, r.Tokens))
	a, ok := s.envs[env]
	if !ok {
		a[0] = tokens
	}
	move(&a[0], tokens, tokensRate)
	s.envs[env] = a
}

// State is the averages.
func (s *TokenShares) State() []byte { return s.envs.state() }

// Restore takes the averages.
func (s *TokenShares) Restore(state []byte) error {
	if err := s.envs.restore(state); err != nil {
		return err
	}
	for name, a := range s.envs {
		if a[0] < 1 {
			return fmt.Errorf("%v tokens for a group of %q", a[0], name)
		}
	}
	return nil
}
