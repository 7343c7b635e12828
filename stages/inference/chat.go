package inference

import (
	"encoding/json"
	"net/http"
	"strings"
	"unicode/utf8"

	"github.com/prl-project/prl/stages/inference/render"
)

// chatRequest is the body of OpenAI's chat completions.
type chatRequest struct {
	textParams
	Messages            chatHistory `json:"messages"`
	Tools               chatTools   `json:"tools"`
	ToolChoice          toolChoice  `json:"tool_choice"`
	ParallelToolCalls   *bool       `json:"parallel_tool_calls"`   // false: only the first call of an answer is told
	MaxCompletionTokens *int        `json:"max_completion_tokens"` // another name of max_tokens
	Logprobs            bool        `json:"logprobs"`
	TopLogprobs         int         `json:"top_logprobs"`
}

// UnmarshalJSON refuses parameters that are not supported.
func (c *chatRequest) UnmarshalJSON(data []byte) error {
	type plain chatRequest
	if err := json.Unmarshal(data, (*plain)(c)); err != nil {
		return err
	}
	return checkSupported(data, "n", "stop", "tools", "tool_choice", "top_logprobs")
}

// chatChoice is an answer, or the next piece of it in a stream.
type chatChoice struct {
	Index        int           `json:"index"`
	Message      *chatAnswer   `json:"message,omitempty"`
	Delta        *chatAnswer   `json:"delta,omitempty"`
	FinishReason *string       `json:"finish_reason"` // null before the last event of a stream
	StopReason   any           `json:"stop_reason"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	TokenIDs     []int32       `json:"token_ids,omitempty"`
	Versions     []versionSpan `json:"policy_versions"` // in a stream, those that begin in the event
}

type chatLogprobs struct {
	Content []chatLogprob `json:"content"`
}

type chatLogprob struct {
	Token       string        `json:"token"`
	Logprob     float32       `json:"logprob"`
	Bytes       []int         `json:"bytes"` // of the token; null where it is not whole characters
	TopLogprobs []chatLogprob `json:"top_logprobs,omitzero"`
}

func (a *API) chat(r *http.Request, data []byte) (any, error) {
	var body chatRequest
	if err := decodeBody(data, &body); err != nil {
		return nil, err
	}
	if body.TopLogprobs != 0 && !body.Logprobs {
		return nil, refuse(http.StatusBadRequest, CodeInvalid, "top_logprobs belong to logprobs: true")
	}
	speech, err := a.speaker.Renderer(r.Context())
	if err != nil {
		return nil, err
	}
	if body.ToolChoice == toolsNone {
		body.Tools = nil
	}
	messages, tools, err := body.Messages.render(body.Tools)
	if err != nil {
		return nil, err
	}
	if body.MaxCompletionTokens != nil {
		body.MaxTokens = body.MaxCompletionTokens
	}
	request, err := body.request(a, 1, body.TopLogprobs, speech)
	if err != nil {
		return nil, err
	}
	exchange, err := a.speaker.Hear(r.Context(), Ask{messages, tools, request, body.Temperature, body.TopP})
	if err != nil {
		return nil, err
	}
	answers, err := body.answers(speech, exchange)
	if err != nil {
		return nil, err
	}
	callID := exchange.CallID
	if callID == nil {
		callID = func() string { return a.nextID("call") }
	}
	turns := make([]turn, len(answers))
	for i := range turns {
		turns[i] = turn{
			speech: speech, tools: len(body.Tools) > 0, one: body.ParallelToolCalls != nil && !*body.ParallelToolCalls,
			index: body.Stream, callID: callID,
		}
	}
	choice := func(p piece) chatChoice {
		t := &turns[p.index]
		said, finish := t.say(p)
		if finish != nil && exchange.Said != nil {
			exchange.Said(p.out, t.message(said))
		}
		c := chatChoice{Index: p.index, FinishReason: finish, StopReason: p.reason, TokenIDs: body.tokenIDs(p.tokens()), Versions: p.versions()}
		if body.Stream {
			c.Delta = &said
		} else {
			c.Message = &said
		}
		if body.Logprobs {
			c.Logprobs = body.logprobs(p, speech)
		}
		return c
	}
	return talk[chatChoice]{
		textParams: body.textParams, kind: "chatcmpl", object: "chat.completion", chunk: "chat.completion.chunk",
		answers: answers, choice: choice, prompt: exchange.Request.Tokens,
	}.serve(r.Context(), a)
}

// logprobs are those of a piece.
func (c chatRequest) logprobs(p piece, r render.Renderer) *chatLogprobs {
	l := &chatLogprobs{Content: make([]chatLogprob, len(p.tokens()))}
	for i, token := range p.tokens() {
		l.Content[i] = c.logprob(r, token, p.out.Logprobs[p.from+i])
		l.Content[i].TopLogprobs = []chatLogprob{}
		for _, t := range p.top(i) {
			l.Content[i].TopLogprobs = append(l.Content[i].TopLogprobs, c.logprob(r, t.Token, t.Logprob))
		}
	}
	return l
}

func (c chatRequest) logprob(r render.Renderer, token int32, logprob float32) chatLogprob {
	l := chatLogprob{Token: c.tokenText(r, token), Logprob: logprob}
	if text := r.Token(token); !strings.ContainsRune(text, utf8.RuneError) {
		for _, b := range []byte(text) {
			l.Bytes = append(l.Bytes, int(b))
		}
	}
	return l
}
