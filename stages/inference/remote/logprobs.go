package remote

import (
	"context"
	"fmt"
	"math"

	"github.com/prl-project/prl/stages/inference"
)

// checkLogprobs finds out whether a server gives log-probabilities after temperature, by the odds of the most probable next
// tokens at two temperatures: after temperature, the logarithm of the odds of two tokens at temperature ½ is twice that at
// 1; before, it is the same. It is an error if it is nearer to the latter. It is not sure where all tokens are as probable
// as each other after every prompt it tries.
func checkLogprobs(ctx context.Context, s *server) (sure bool, err error) {
	for first := range int32(8) {
		prompt := []int32{first, first + 1}
		one, err := nextTokens(ctx, s, prompt, 1)
		if err != nil {
			return false, fmt.Errorf("check its log-probabilities: %w", err)
		}
		half, err := nextTokens(ctx, s, prompt, 0.5)
		if err != nil {
			return false, fmt.Errorf("check its log-probabilities: %w", err)
		}
		raw, scaled, ok := odds(one, half)
		if !ok {
			continue
		}
		if math.Abs(scaled-2*raw) < math.Abs(scaled-raw) {
			return true, nil
		}
		return false, misstarted{fmt.Errorf("it gives log-probabilities before temperature, with which nothing can be trained: %s", s.fleet.make.afterTemperature())}
	}
	s.fleet.log.Warn("it is not known yet whether a server gives log-probabilities after temperature: to the policy, all tokens are as probable as each other", "server", s.url)
	return false, nil
}

// odds are the logarithms of the odds of two tokens that are in both lists, at the two temperatures: of those two that are
// the most apart in the first.
func odds(one, half []inference.TopLogprob) (raw, scaled float64, ok bool) {
	const apart = 0.02 // what servers compute in bfloat16 differs from one request to the next
	at := map[int32]float64{}
	for _, t := range half {
		at[t.Token] = float64(t.Logprob)
	}
	for i, a := range one {
		for _, b := range one[i+1:] {
			la, okA := at[a.Token]
			lb, okB := at[b.Token]
			if d := float64(a.Logprob - b.Logprob); okA && okB && d > raw {
				raw, scaled = d, la-lb
			}
		}
	}
	return raw, scaled, raw > apart
}

// nextTokens are the most probable tokens behind a prompt.
func nextTokens(ctx context.Context, s *server, prompt []int32, temperature float64) ([]inference.TopLogprob, error) {
	ctx, cancel := s.brief(ctx)
	defer cancel()
	r := inference.Request{Tokens: prompt, MaxTokens: 1, Temperature: temperature, TopLogprobs: 5, Seed: 1}
	a, err := s.fleet.make.generate(ctx, s.client, r)
	if err == nil {
		a, err = a.checked(r)
	}
	if err != nil {
		return nil, err
	}
	return a.top[0], nil
}
