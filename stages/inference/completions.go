package inference

import (
	"encoding/json"
	"net/http"
	"unicode/utf8"

	"github.com/prl-project/prl/stages/inference/render"
)

// completionRequest is the body of OpenAI's completions.
type completionRequest struct {
	textParams
	Prompt   prompts `json:"prompt"`
	Logprobs *int    `json:"logprobs"` // so many of the most probable tokens beside each; 0: of the sampled ones alone
}

// defaultMaxTokens is OpenAI's, of completions alone.
const defaultMaxTokens = 16

// UnmarshalJSON refuses parameters that are not supported.
func (c *completionRequest) UnmarshalJSON(data []byte) error {
	type plain completionRequest
	if err := json.Unmarshal(data, (*plain)(c)); err != nil {
		return err
	}
	return checkSupported(data, "n", "stop")
}

// prompts are a text, a list of texts, tokens, or a list of tokens.
type prompts struct {
	texts  []string
	tokens [][]int32
}

// UnmarshalJSON takes all four.
func (p *prompts) UnmarshalJSON(data []byte) error {
	var text string
	var tokens []int32
	*p = prompts{}
	switch {
	case json.Unmarshal(data, &text) == nil:
		p.texts = []string{text}
	case json.Unmarshal(data, &p.texts) == nil:
	case json.Unmarshal(data, &tokens) == nil:
		p.texts, p.tokens = nil, [][]int32{tokens}
	default:
		p.texts, p.tokens = nil, nil
		if err := json.Unmarshal(data, &p.tokens); err != nil {
			return refuse(http.StatusBadRequest, CodeInvalid, "prompt: want a text, a list of texts, token ids, or a list of lists of them")
		}
	}
	return nil
}

// render gives the tokens of every prompt.
func (p prompts) render(r render.Renderer) ([][]int32, error) {
	out := p.tokens
	for _, text := range p.texts {
		out = append(out, r.Encode(text))
	}
	if len(out) == 0 {
		return nil, refuse(http.StatusBadRequest, CodeInvalid, "prompt is missing")
	}
	for i, tokens := range out {
		if len(tokens) == 0 {
			return nil, refuse(http.StatusBadRequest, CodeInvalid, "prompt %d of %d has no tokens", i, len(out))
		}
	}
	return out, nil
}

type completionChoice struct {
	Index          int                 `json:"index"`
	Text           string              `json:"text"`
	Logprobs       *completionLogprobs `json:"logprobs"`
	FinishReason   *string             `json:"finish_reason"` // null before the last event of a stream
	StopReason     any                 `json:"stop_reason"`
	TokenIDs       []int32             `json:"token_ids,omitempty"`
	PromptTokenIDs []int32             `json:"prompt_token_ids,omitempty"` // in a stream, of the first event
	Versions       []versionSpan       `json:"policy_versions"`            // in a stream, those that begin in the event
}

type completionLogprobs struct {
	Tokens        []string             `json:"tokens"`
	TokenLogprobs []float32            `json:"token_logprobs"`
	TopLogprobs   []map[string]float32 `json:"top_logprobs"`
	TextOffset    []int                `json:"text_offset"` // in characters of the tokens' own texts
}

func (s *Server) handleCompletions(r *http.Request, data []byte) (any, error) {
	var body completionRequest
	if err := decodeBody(data, &body); err != nil {
		return nil, err
	}
	speech, err := s.Renderer(r.Context())
	if err != nil {
		return nil, err
	}
	prompts, err := body.Prompt.render(speech)
	if err != nil {
		return nil, err
	}
	if body.MaxTokens == nil {
		most := defaultMaxTokens
		body.MaxTokens = &most
	}
	top := 0
	if body.Logprobs != nil {
		top = *body.Logprobs
	}
	request, err := body.request(s.api, len(prompts), top, speech)
	if err != nil {
		return nil, err
	}
	exchanges := make([]Exchange, len(prompts))
	for i, prompt := range prompts {
		exchanges[i] = Exchange{Request: request, Generate: s.Generate}
		exchanges[i].Request.Tokens = prompt
	}
	answers, err := body.answers(speech, exchanges...)
	if err != nil {
		return nil, err
	}
	offsets := make([]int, len(answers)) // of each answer, where its next token's text begins
	choice := func(p piece) completionChoice {
		c := completionChoice{
			Index: p.index, Text: p.text, FinishReason: p.finish(), StopReason: p.reason,
			TokenIDs: body.tokenIDs(p.tokens()), Versions: p.versions(),
		}
		if p.from == 0 {
			c.PromptTokenIDs = body.tokenIDs(p.request.Tokens)
		}
		if body.Logprobs != nil {
			c.Logprobs = body.logprobs(p, speech, &offsets[p.index])
		}
		return c
	}
	return talk[completionChoice]{
		textParams: body.textParams, kind: "cmpl", object: "text_completion", chunk: "text_completion", answers: answers, choice: choice,
	}.serve(r.Context(), s.api)
}

// logprobs are those of a piece. Of tokens with equal texts the most probable is listed, and the sampled one in any case.
func (c completionRequest) logprobs(p piece, r render.Renderer, offset *int) *completionLogprobs {
	n := len(p.tokens())
	l := &completionLogprobs{
		Tokens: make([]string, n), TokenLogprobs: p.out.Logprobs[p.from:], TopLogprobs: make([]map[string]float32, n), TextOffset: make([]int, n),
	}
	for i, token := range p.tokens() {
		name := c.tokenText(r, token)
		top := map[string]float32{}
		for _, t := range p.top(i) {
			other := c.tokenText(r, t.Token)
			if _, taken := top[other]; !taken {
				top[other] = t.Logprob
			}
		}
		top[name] = l.TokenLogprobs[i]
		l.Tokens[i], l.TopLogprobs[i], l.TextOffset[i] = name, top, *offset
		*offset += utf8.RuneCountInString(name)
	}
	return l
}
