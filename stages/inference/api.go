package inference

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/prl-project/prl/schemas"
)

// Request asks for one completion of a prompt that is given as tokens.
type Request struct {
	// Tokens is the prompt. It must be shorter than the longest sequence (CodeTooLong otherwise).
	Tokens []int32
	// MaxTokens is how many tokens are sampled at most; 0, or more than fit, is as many as fit.
	MaxTokens int
	// Temperature divides the logits; 0 takes the most probable token.
	Temperature float64
	// TopP restricts sampling to the most probable tokens that together reach it; 0 and 1 are no restriction.
	TopP float64
	// Seed of the request's own random numbers: the same seed, prompt and version give the same tokens.
	Seed int64
	// StopTokens end the completion; nothing else does, no end-of-sequence token either.
	StopTokens []int32
	// PinVersion is the only policy version that may serve the request, which waits until it is published; nil is the
	// newest at each token. A frozen policy has no versions.
	PinVersion *int64
	// Policy is the frozen policy that is to answer; empty is the one that is trained.
	Policy string
	// Model is the name under which the policy is asked for where Policy is empty; empty is whatever is served.
	Model string
	// TopLogprobs asks for that many of the most probable tokens beside each that is sampled, at most MaxTopLogprobs.
	// What is sampled, and its log-probability, is the same with and without. A Generator that cannot give them refuses
	// (CodeUnsupported).
	TopLogprobs int
	// OnTokens, if there is one, is shown the completion while it grows: all that there is of it, whenever that is more
	// than the last time. It is called by the goroutine that called Generate, so that one who takes his time holds up
	// nobody else; what is sampled meanwhile he is shown at once. What it is shown stays as it is, and it changes
	// nothing of it. Where it returns false the completion is over: Generate returns what it showed last, with
	// FinishStop. A Generator that gets its tokens all at once need not call it, as Generate returns all of them in any
	// case.
	OnTokens func(soFar Completion) (more bool)
}

// Completion is what the policy sampled. Logprobs is as long as Tokens.
type Completion struct {
	// Tokens are the sampled ones, the stop token that ended them included.
	Tokens []int32
	// Prompt is what the policy saw, where that may be other tokens than Request.Tokens, as with a server that takes only
	// text; nil where it is those.
	Prompt []int32
	// Logprobs are those of the sampled tokens, after temperature (before top-p); at temperature 0, of the logits as
	// they are.
	Logprobs []float32
	// Versions says which policy version sampled the tokens from an offset into Tokens on; the first offset is 0. A frozen
	// policy has none.
	Versions []schemas.VersionRun
	// Top is as long as Tokens if the request has TopLogprobs, and nil otherwise: for each token the most probable ones
	// at its place, with their log-probabilities as in Logprobs, most probable first.
	Top [][]TopLogprob
	// Cached is how many tokens of the prompt did not have to be computed; it depends on what was served before, and
	// nothing else does.
	Cached int
	// FinishReason is FinishStop or FinishLength; empty while the completion grows.
	FinishReason string
}

// TopLogprob is a token that could have been sampled.
type TopLogprob struct {
	Token   int32
	Logprob float32
}

// MaxTopLogprobs is OpenAI's limit, and vLLM's.
const MaxTopLogprobs = 20

// Reasons why a completion ended.
const (
	FinishStop   = "stop"   // a stop token was sampled, or OnTokens had enough
	FinishLength = "length" // MaxTokens were sampled, or no more fit
)

// A Generator completes prompts. Generate is called from many goroutines at once and returns when the completion is
// whole, when ctx ends (with its error), or with an *Error.
type Generator interface {
	Generate(ctx context.Context, r Request) (Completion, error)
}

// A Model completes prompts and says how probable tokens are.
type Model interface {
	Generator
	Prober
}

// A Host is a Model that says what it serves: the server of this process, or the client of one elsewhere.
type Host interface {
	Model
	// Models lists the policies that it serves, once it can.
	Models(ctx context.Context) ([]ModelCard, error)
	// String is where it is, for people.
	String() string
}

// Error says why a request was not served: the same in process and over HTTP.
type Error struct {
	Status  int    // of the HTTP reply; 0 where there was none
	Code    string // one of the codes below, or what a foreign server called it
	Message string
	Cause   error // of a call without a reply
}

// Codes of errors.
const (
	CodeInvalid      = "invalid_request"         // 400: the request can never be served
	CodeUnsupported  = "unsupported_parameter"   // 400: names a parameter this server does not implement
	CodeTooLong      = "context_length_exceeded" // 400: the prompt leaves no room for a token
	CodeUnauthorized = "unauthorized"            // 401
	CodeNoModel      = "model_not_found"         // 404: another model is served
	CodeNoVersion    = "version_not_found"       // 404: newer versions exist, this one does not
	CodeTooLarge     = "request_too_large"       // 413
	CodeInternal     = "internal_error"          // 500
	CodeOverloaded   = "overloaded"              // 503: the queue is full
	CodeStopping     = "stopping"                // 503: the server shuts down
	CodeHeldTooLong  = "version_not_published"   // 504: the pinned version did not come in time
	CodeConnection   = "connection"              // no reply
	CodeUnusable     = "unusable_answer"         // the server or its answer is of no use, and would be the same again
)

func (e *Error) Error() string {
	s := e.Message
	if e.Status != 0 {
		s = fmt.Sprintf("%s (%d %s)", e.Message, e.Status, e.Code)
	}
	if e.Cause != nil {
		s += ": " + e.Cause.Error()
	}
	return s
}

// Unwrap gives the cause of a call without a reply.
func (e *Error) Unwrap() error { return e.Cause }

// Retryable reports whether the same request may succeed later: after a reply of 5xx and where there was no reply, but
// not after 4xx or an answer that would be the same again, and not when the caller's context has ended.
func Retryable(err error) bool {
	if errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	var e *Error
	return errors.As(err, &e) && e.Code != CodeUnusable && (e.Status == 0 || e.Status >= http.StatusInternalServerError)
}

func refuse(status int, code, format string, args ...any) *Error {
	return &Error{Status: status, Code: code, Message: fmt.Sprintf(format, args...)}
}

// validate checks what does not depend on the model.
func (r Request) validate() error {
	switch {
	case len(r.Tokens) == 0:
		return refuse(http.StatusBadRequest, CodeInvalid, "the prompt has no tokens")
	case slices.Min(r.Tokens) < 0:
		return refuse(http.StatusBadRequest, CodeInvalid, "the prompt has token %d", slices.Min(r.Tokens))
	case r.MaxTokens < 0:
		return refuse(http.StatusBadRequest, CodeInvalid, "max_tokens = %d: at least 1, or 0 for as many as fit", r.MaxTokens)
	case !(r.Temperature >= 0 && r.Temperature <= maxTemperature) || (r.Temperature > 0 && r.Temperature < minTemperature):
		return refuse(http.StatusBadRequest, CodeInvalid, "temperature = %g: 0, or between %g and %g", r.Temperature, minTemperature, maxTemperature)
	case !(r.TopP >= 0 && r.TopP <= 1):
		return refuse(http.StatusBadRequest, CodeInvalid, "top_p = %g: above 0, at most 1", r.TopP)
	case len(r.StopTokens) > maxStopTokens:
		return refuse(http.StatusBadRequest, CodeInvalid, "%d stop tokens: at most %d", len(r.StopTokens), maxStopTokens)
	case r.TopLogprobs < 0 || r.TopLogprobs > MaxTopLogprobs:
		return refuse(http.StatusBadRequest, CodeInvalid, "top_logprobs = %d: at least 0, at most %d", r.TopLogprobs, MaxTopLogprobs)
	}
	return validatePin(r.Policy, r.PinVersion)
}

func validatePin(policy string, pin *int64) error {
	switch {
	case pin != nil && *pin < 0:
		return refuse(http.StatusBadRequest, CodeInvalid, "pin_version = %d: versions count from 0", *pin)
	case pin != nil && policy != "":
		return refuse(http.StatusBadRequest, CodeInvalid, "pin_version = %d: the frozen policy %q has no versions", *pin, policy)
	}
	return nil
}

// maxStopTokens bounds the work that a token makes: each is held to every stop token.
const maxStopTokens = 1 << 10

// Bounds of a temperature other than 0: inside them float32 logits divided by it stay finite and apart.
const (
	minTemperature = 1e-2
	maxTemperature = 100.0
)
