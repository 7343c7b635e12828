package inference

import (
	"encoding/json"
	"math/rand/v2"
	"net/http"

	"github.com/prl-project/prl/stages/inference/render"
)

// textParams are the parameters of the endpoints that answer with text.
type textParams struct {
	samplingParams
	Model          string         `json:"model"`
	N              *int           `json:"n"`
	Stop           stopStrings    `json:"stop"`
	IncludeStop    bool           `json:"include_stop_str_in_output"`
	Stream         bool           `json:"stream"`
	StreamOptions  *streamOptions `json:"stream_options"`
	ReturnTokenIDs *bool          `json:"return_token_ids"`           // default true, unlike vLLM's
	TokensAsIDs    bool           `json:"return_tokens_as_token_ids"` // in log-probabilities, tokens are called token_id:<id>
	PinVersion     *int64         `json:"pin_version"`                // ours
}

// streamOptions say what a stream tells beside the answers.
type streamOptions struct {
	IncludeUsage bool `json:"include_usage"`
}

// stopStrings is a text, null, or a list of texts. OpenAI takes four, vLLM any number.
type stopStrings []string

// Bounds of the work that a token makes: each is held to every stop string.
const (
	maxStopStrings = 64
	maxStopBytes   = 1 << 10 // of one
)

// UnmarshalJSON refuses texts that would end an answer before its first token.
func (s *stopStrings) UnmarshalJSON(data []byte) error {
	var one string
	var list []string
	switch {
	case json.Unmarshal(data, &one) == nil && one == "":
	case one != "":
		list = []string{one}
	case json.Unmarshal(data, &list) != nil:
		return refuse(http.StatusBadRequest, CodeInvalid, "stop: want a text or a list of texts")
	}
	if len(list) > maxStopStrings {
		return refuse(http.StatusBadRequest, CodeInvalid, "stop has %d texts: at most %d", len(list), maxStopStrings)
	}
	for i, text := range list {
		if text == "" || len(text) > maxStopBytes {
			return refuse(http.StatusBadRequest, CodeInvalid, "stop[%d] has %d bytes: at least 1, at most %d", i, len(text), maxStopBytes)
		}
	}
	*s = list
	return nil
}

// choices is how many there are for each prompt.
func (p textParams) choices() int {
	if p.N == nil {
		return 1
	}
	return *p.N
}

// request is one of n prompts, without its tokens.
func (p textParams) request(a *API, prompts, top int, r render.Renderer) (Request, error) {
	if n := p.choices(); n < 1 || n > a.choices/prompts {
		return Request{}, refuse(http.StatusBadRequest, CodeInvalid, "n = %d of %d prompts: at least 1, and at most %d choices (%s)", n, prompts, a.choices, a.limit)
	}
	if p.StreamOptions != nil && !p.Stream {
		return Request{}, refuse(http.StatusBadRequest, CodeInvalid, "stream_options belong to stream: true")
	}
	req := Request{PinVersion: p.PinVersion, Model: p.Model, TopLogprobs: top}
	return req, p.apply(&req, r.Stop())
}

// answers are the choices that are asked for, of the first exchange first, each with the n of it in order. Every choice has a
// seed of its own, see choiceSeed.
func (p textParams) answers(r render.Renderer, exchanges ...Exchange) ([]*answer, error) {
	n := p.choices()
	out := make([]*answer, 0, n*len(exchanges))
	for _, e := range exchanges {
		if err := e.Request.validate(); err != nil {
			return nil, err
		}
		for i := range n {
			a := &answer{
				index: len(out), sample: e.Generate, request: e.Request, named: p.StopTokenIDs,
				text: text{decode: r.Decode, stop: p.Stop, include: p.IncludeStop},
			}
			a.request.Seed = choiceSeed(e.Request.Seed, i)
			out = append(out, a)
		}
	}
	return out, nil
}

// choiceSeed is the seed of choice i of a request: of the first the request's own, so that it is what the same request
// without n gives; of others a draw from it.
func choiceSeed(seed int64, i int) int64 {
	if i == 0 {
		return seed
	}
	return rand.New(rand.NewPCG(uint64(seed), uint64(i))).Int64()
}

// tokenIDs are what a reply says of tokens; nothing where the client wants none.
func (p textParams) tokenIDs(tokens []int32) []int32 {
	if p.ReturnTokenIDs != nil && !*p.ReturnTokenIDs {
		return nil
	}
	return tokens
}

// tokenText is how log-probabilities call a token.
func (p textParams) tokenText(r render.Renderer, token int32) string {
	if p.TokensAsIDs {
		return tokenName(token)
	}
	return r.Token(token)
}
