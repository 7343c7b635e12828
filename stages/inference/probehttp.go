package inference

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strconv"

	"github.com/prl-project/prl/stages/inference/render"
)

// probeReply is what a reply of /inference/v1/generate has where sampling_params.prompt_logprobs = 0 asked for it.
// prompt_logprobs is vLLM's: null for the first token, then an object with each token's id. The other two are ours: vLLM's
// log-probabilities are those at temperature 1, whatever the request says, and it has no versions.
type probeReply struct {
	PromptLogprobs    []map[string]promptLogprob `json:"prompt_logprobs,omitempty"`
	PromptTemperature *float64                   `json:"prompt_temperature,omitempty"` // the one they are after
	PolicyVersion     *int64                     `json:"policy_version,omitempty"`     // that was asked; absent for a frozen policy
}

type promptLogprob struct {
	Logprob      float32 `json:"logprob"`
	DecodedToken string  `json:"decoded_token"`
}

// handleProbe answers a request for the log-probabilities of its prompt. r is the request it would be for a completion.
func (s *Server) handleProbe(ctx context.Context, r Request, top int, speech render.Renderer) (any, error) {
	if top != 0 {
		return nil, refuse(http.StatusBadRequest, CodeUnsupported, "prompt_logprobs = %d: 0, of the prompt's own tokens", top)
	}
	if r.MaxTokens > 1 {
		return nil, refuse(http.StatusBadRequest, CodeUnsupported, "max_tokens = %d with prompt_logprobs: at most 1, nothing is sampled", r.MaxTokens)
	}
	p := Probe{Tokens: r.Tokens, Mask: slices.Repeat([]byte{1}, len(r.Tokens)), Temperature: r.Temperature, PinVersion: r.PinVersion, Model: r.Model}
	p.Mask[0] = 0
	policy, err := s.policyOf("", r.Model)
	if err != nil {
		return nil, err
	}
	if policy == "" && p.PinVersion == nil {
		newest, err := s.newest(ctx)
		if err != nil {
			return nil, err
		}
		p.PinVersion = &newest
	}
	logprobs, err := s.Probe(ctx, p)
	if err != nil {
		return nil, err
	}
	reply := generateReply{
		RequestID: s.api.nextID("gen"), Choices: []generateChoice{{TokenIDs: []int32{}, FinishReason: FinishLength, Versions: []versionSpan{}}},
		probeReply: probeReply{PromptLogprobs: make([]map[string]promptLogprob, len(logprobs)), PromptTemperature: &p.Temperature, PolicyVersion: p.PinVersion},
	}
	for i, t := range r.Tokens[1:] {
		reply.PromptLogprobs[i+1] = map[string]promptLogprob{strconv.Itoa(int(t)): {logprobs[i+1], speech.Token(t)}}
	}
	return reply, nil
}

// newest waits for the version that serves requests without a pin.
func (s *Server) newest(ctx context.Context) (int64, error) {
	if _, err := s.available(ctx, "", nil); err != nil {
		return none, err
	}
	s.policies.mu.Lock()
	defer s.policies.mu.Unlock()
	return s.policies.serving(), nil
}

// Probe implements Prober.
func (c *Client) Probe(ctx context.Context, p Probe) ([]float32, error) {
	if err := p.validate(); err != nil {
		return nil, err
	}
	length := len(p.Tokens)
	if p = p.trimmed(); len(p.Tokens) == 0 {
		return make([]float32, length), nil
	}
	one, none := 1, 0
	q := generateRequest{Model: nameOf(p.Policy, p.Model), TokenIDs: p.Tokens, PinVersion: p.PinVersion, Sampling: generateSampling{
		samplingParams: samplingParams{Temperature: &p.Temperature, MaxTokens: &one}, PromptLogprobs: &none,
	}}
	var reply generateReply
	if err := c.ask(ctx, q, &reply); err != nil {
		return nil, err
	}
	if reply.PromptTemperature == nil && p.Temperature != 1 {
		return nil, refuse(http.StatusBadRequest, CodeUnsupported,
			"%s gives log-probabilities of a prompt at temperature 1 only, these tokens were sampled at %g: sample at temperature 1", c.base, p.Temperature)
	}
	logprobs, err := reply.logprobs(p)
	if err != nil {
		return nil, c.invalid(err)
	}
	return append(logprobs, make([]float32, length-len(logprobs))...), nil
}

// logprobs checks a reply and reads it.
func (r probeReply) logprobs(p Probe) ([]float32, error) {
	switch {
	case r.PromptTemperature != nil && *r.PromptTemperature != p.Temperature:
		return nil, fmt.Errorf("log-probabilities at temperature %g, not %g", *r.PromptTemperature, p.Temperature)
	case len(r.PromptLogprobs) != len(p.Tokens):
		return nil, fmt.Errorf("%d log-probabilities for a prompt of %d tokens", len(r.PromptLogprobs), len(p.Tokens))
	case p.Policy == "" && r.PolicyVersion == nil:
		return nil, errors.New("it does not say which policy version was asked")
	case p.Policy == "" && *r.PolicyVersion != *p.PinVersion:
		return nil, fmt.Errorf("policy version %d was asked, not %d", *r.PolicyVersion, *p.PinVersion)
	}
	out := make([]float32, len(p.Tokens))
	for i, t := range p.Tokens {
		if p.Mask[i] == 0 {
			continue
		}
		l, ok := r.PromptLogprobs[i][strconv.Itoa(int(t))]
		if !ok {
			return nil, fmt.Errorf("no log-probability of token %d, which is %d", i, t)
		}
		if f := float64(l.Logprob); math.IsNaN(f) || math.IsInf(f, 0) || f > 0 || f <= clamped {
			return nil, fmt.Errorf("log-probability %d is %g", i, f)
		}
		out[i] = l.Logprob
	}
	return out, nil
}

// clamped is what vLLM says for a log-probability that is not finite.
const clamped = -9999
