package inference

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"

	"github.com/prl-project/prl/schemas"
)

const pathGenerate = "/inference/v1/generate"

// generateRequest is the body of vLLM's token-in, token-out endpoint; pin_version is ours.
type generateRequest struct {
	Model      string           `json:"model,omitempty"`
	TokenIDs   []int32          `json:"token_ids"`
	Sampling   generateSampling `json:"sampling_params"`
	PinVersion *int64           `json:"pin_version,omitempty"`
}

type generateSampling struct {
	samplingParams
	Logprobs       *int `json:"logprobs,omitempty"`        // 1: of the sampled tokens; 0: none
	PromptLogprobs *int `json:"prompt_logprobs,omitempty"` // 0: of the tokens of the prompt, and nothing is sampled
}

type generateReply struct {
	RequestID string           `json:"request_id"`
	Choices   []generateChoice `json:"choices"`
	// PromptTokenIDs are what the policy saw, where that is not the token_ids of the request.
	PromptTokenIDs []int32 `json:"prompt_token_ids,omitempty"`
	probeReply
}

type generateChoice struct {
	Index        int           `json:"index"`
	TokenIDs     []int32       `json:"token_ids"`
	FinishReason string        `json:"finish_reason"`
	Logprobs     *logprobs     `json:"logprobs"`
	Versions     []versionSpan `json:"policy_versions"`
}

type logprobs struct {
	Content []tokenLogprob `json:"content"`
}

// tokenLogprob names its token as text, or in generate's replies as token_id:<id>. There vLLM gives the id as a number from
// 0.32 on, and no text.
type tokenLogprob struct {
	Token   string  `json:"token"`
	TokenID *int32  `json:"token_id,omitempty"`
	Logprob float32 `json:"logprob"`
}

// of says whether it is of a token, in a reply of generate.
func (l tokenLogprob) of(token int32) bool {
	if l.TokenID != nil {
		return *l.TokenID == token
	}
	return l.Token == tokenName(token)
}

// name is how it names its token.
func (l tokenLogprob) name() string {
	if l.TokenID != nil {
		return tokenName(*l.TokenID)
	}
	return l.Token
}

// versionSpan says which policy version sampled the tokens from an offset on.
type versionSpan struct {
	Offset  int   `json:"offset"`
	Version int64 `json:"version"`
}

func spansOf(runs []schemas.VersionRun) []versionSpan {
	spans := make([]versionSpan, len(runs))
	for i, r := range runs {
		spans[i] = versionSpan(r)
	}
	return spans
}

// nameOf is what a request asks for by name.
func nameOf(policy, model string) string {
	if policy != "" {
		return policy
	}
	return model
}

// newGenerateRequest is r as the client sends it. The stop tokens are complete, so the end of sequence is ignored.
func newGenerateRequest(r Request) generateRequest {
	one := 1
	q := generateRequest{Model: nameOf(r.Policy, r.Model), TokenIDs: r.Tokens, PinVersion: r.PinVersion, Sampling: generateSampling{
		samplingParams: samplingParams{Temperature: &r.Temperature, Seed: &r.Seed, StopTokenIDs: r.StopTokens, IgnoreEOS: true},
		Logprobs:       &one,
	}}
	if r.TopP != 0 {
		q.Sampling.TopP = &r.TopP
	}
	if r.MaxTokens != 0 {
		q.Sampling.MaxTokens = &r.MaxTokens
	}
	return q
}

// UnmarshalJSON refuses parameters that are not supported.
func (g *generateSampling) UnmarshalJSON(data []byte) error {
	if err := checkSupported(data, "prompt_logprobs", "skip_special_tokens"); err != nil {
		return err
	}
	type plain generateSampling
	return json.Unmarshal(data, (*plain)(g))
}

// generateBody adds what is refused at the top level.
type generateBody struct {
	generateRequest
	Stream   bool            `json:"stream"`
	Features json.RawMessage `json:"features"`
}

func (a *API) generate(r *http.Request, data []byte) (any, error) {
	var body generateBody
	if err := decodeBody(data, &body); err != nil {
		return nil, err
	}
	if body.Stream {
		return nil, refuse(http.StatusBadRequest, CodeUnsupported, "not supported by this endpoint: [stream]; send stream: false, or use /v1/completions")
	}
	if len(body.Features) > 0 && !asksForNothing(body.Features, nil) {
		return nil, refuse(http.StatusBadRequest, CodeUnsupported, "not supported by this server: [features]")
	}
	if n := body.Sampling.Logprobs; n != nil && (*n < 0 || *n > 1) {
		return nil, refuse(http.StatusBadRequest, CodeUnsupported, "logprobs = %d: 1, of the sampled token, or 0", *n)
	}
	speech, err := a.speaker.Renderer(r.Context())
	if err != nil {
		return nil, err
	}
	req := Request{Tokens: body.TokenIDs, PinVersion: body.PinVersion, Model: body.Model}
	if err := body.Sampling.apply(&req, speech.Stop()); err != nil {
		return nil, err
	}
	if err := req.validate(); err != nil {
		return nil, err
	}
	if n := body.Sampling.PromptLogprobs; n != nil {
		if a.probe == nil {
			return nil, refuse(http.StatusBadRequest, CodeUnsupported, "not supported by this server: [prompt_logprobs]")
		}
		return a.probe(r.Context(), req, *n, speech)
	}
	exchange, err := a.speaker.Hear(r.Context(), Ask{Request: req, Temperature: body.Sampling.Temperature, TopP: body.Sampling.TopP})
	if err != nil {
		return nil, err
	}
	c, err := exchange.Generate(r.Context(), exchange.Request)
	if err != nil {
		return nil, err
	}
	if exchange.Said != nil {
		exchange.Said(c, nil)
	}
	choice := generateChoice{TokenIDs: c.Tokens, FinishReason: c.FinishReason, Versions: spansOf(c.Versions)}
	if n := body.Sampling.Logprobs; n != nil && *n == 1 {
		choice.Logprobs = &logprobs{Content: make([]tokenLogprob, len(c.Tokens))}
		for i, t := range c.Tokens {
			choice.Logprobs.Content[i] = tokenLogprob{Token: tokenName(t), Logprob: c.Logprobs[i]}
		}
	}
	return generateReply{RequestID: a.nextID("gen"), Choices: []generateChoice{choice}, PromptTokenIDs: c.Prompt}, nil
}

// errAborted is a completion that vLLM gave up, as when it is told to pause: the next may be whole.
var errAborted = errors.New("the server aborted the completion")

// tokenPrefix stands before the id of a token that is named by it.
const tokenPrefix = "token_id:"

func tokenName(t int32) string { return tokenPrefix + strconv.Itoa(int(t)) }

// completion checks a reply and reads it. A frozen policy may have versions where it is served, which mean nothing here.
func (r generateReply) completion(frozen bool) (Completion, error) {
	if len(r.Choices) != 1 {
		return Completion{}, fmt.Errorf("%d choices: want one", len(r.Choices))
	}
	c := r.Choices[0]
	n := len(c.TokenIDs)
	switch {
	case c.FinishReason == "abort":
		return Completion{}, errAborted
	case n == 0:
		return Completion{}, errors.New("no tokens")
	case c.FinishReason != FinishStop && c.FinishReason != FinishLength:
		return Completion{}, fmt.Errorf("finish_reason %q", c.FinishReason)
	case c.Logprobs == nil || len(c.Logprobs.Content) != n:
		return Completion{}, fmt.Errorf("not one log-probability for each of %d tokens", n)
	case !frozen && (len(c.Versions) == 0 || c.Versions[0].Offset != 0):
		return Completion{}, errors.New("it does not say which policy version sampled the first token")
	}
	out := Completion{Prompt: r.PromptTokenIDs, Tokens: c.TokenIDs, Logprobs: make([]float32, n), FinishReason: c.FinishReason}
	for i, l := range c.Logprobs.Content {
		if !l.of(c.TokenIDs[i]) {
			return Completion{}, fmt.Errorf("log-probability %d is of %q, the token is %d", i, l.name(), c.TokenIDs[i])
		}
		if f := float64(l.Logprob); math.IsNaN(f) || math.IsInf(f, 0) || f > 0 {
			return Completion{}, fmt.Errorf("log-probability %d is %g", i, f)
		}
		out.Logprobs[i] = l.Logprob
	}
	if frozen {
		return out, nil
	}
	for i, v := range c.Versions {
		if v.Offset >= n || v.Version < 0 || i > 0 && v.Offset <= c.Versions[i-1].Offset {
			return Completion{}, fmt.Errorf("policy version %d from token %d of %d on, in run %d", v.Version, v.Offset, n, i)
		}
		out.Versions = append(out.Versions, schemas.VersionRun(v))
	}
	return out, nil
}
