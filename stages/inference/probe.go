package inference

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"slices"

	"github.com/prl-project/prl/pipeline/tracing"
)

// Probe asks how probable tokens are that stand already, each given those before it. It is one prefill: nothing is sampled.
type Probe struct {
	// Tokens is the whole sequence. Up to the last token that is masked in it may be as long as the model has positions
	// (CodeTooLong beyond); servers of other makes, which cannot but sample a token behind it, take one less.
	Tokens []int32
	// Mask is 1 for the tokens whose log-probability is wanted and as long as Tokens. Nothing predicts the first token.
	Mask []byte
	// Temperature divides the logits; above 0.
	Temperature float64
	// Policy is the frozen policy that is asked; empty is the one that is trained.
	Policy string
	// PinVersion is the version of the trained policy that is asked, as in a Request; needed where Policy is empty.
	PinVersion *int64
	// Model is as in a Request.
	Model string
}

// A Prober answers probes: with one log-probability for each token, after temperature, 0 where the mask is 0. Of tokens
// that the same policy sampled at that temperature they are, on the native backend, the very bits that came with them.
// Probe is called from many goroutines at once and returns as Generate does.
type Prober interface {
	Probe(ctx context.Context, p Probe) ([]float32, error)
}

// trimmed is p up to the last token that is masked in, of which what follows says nothing; without tokens if none is.
func (p Probe) trimmed() Probe {
	n := bytes.LastIndexByte(p.Mask, 1) + 1
	p.Tokens, p.Mask = p.Tokens[:n:n], p.Mask[:n:n]
	return p
}

// validate checks what does not depend on the model.
func (p Probe) validate() error {
	invalid := func(format string, args ...any) error {
		return refuse(http.StatusBadRequest, CodeInvalid, format, args...)
	}
	switch {
	case len(p.Tokens) == 0:
		return invalid("the sequence has no tokens")
	case len(p.Mask) != len(p.Tokens):
		return invalid("the mask has %d entries for %d tokens", len(p.Mask), len(p.Tokens))
	case p.Mask[0] != 0:
		return invalid("the first token is masked in, but nothing predicts it")
	case slices.Max(p.Mask) > 1:
		return invalid("the mask has the entry %d: 0 and 1 are allowed", slices.Max(p.Mask))
	case !(p.Temperature >= minTemperature && p.Temperature <= maxTemperature):
		return invalid("temperature = %g: between %g and %g", p.Temperature, minTemperature, maxTemperature)
	case p.Policy == "" && p.PinVersion == nil:
		return invalid("pin_version is missing: of the policy that is trained, one version is asked")
	}
	return validatePin(p.Policy, p.PinVersion)
}

// Probe implements Prober.
func (s *Server) Probe(ctx context.Context, p Probe) (logprobs []float32, err error) {
	ctx, done := s.traced(ctx, tracing.ProbeSpan, 0)
	if done != nil {
		defer func() { done(Request{Tokens: p.Tokens, Policy: p.Policy}, Completion{}, err) }()
	}
	if err := s.enter(); err != nil {
		s.metrics.probed(p, err)
		return nil, err
	}
	defer s.leave()
	defer func() { s.metrics.probed(p, err) }()
	ctx, cancel := s.timed(ctx)
	defer cancel()
	if p.Policy, err = s.policyOf(p.Policy, p.Model); err != nil {
		return nil, err
	}
	if err := p.validate(); err != nil {
		return nil, err
	}
	release, err := s.available(ctx, p.Policy, p.PinVersion)
	if err != nil {
		return nil, err
	}
	defer release()
	return s.backend.Probe(ctx, p)
}

// policyName is a policy in messages.
func policyName(frozen string, version int64) string {
	if frozen != "" {
		return fmt.Sprintf("the frozen policy %q", frozen)
	}
	return fmt.Sprintf("policy version %d", version)
}
