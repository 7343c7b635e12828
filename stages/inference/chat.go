package inference

import (
	"encoding/json"
	"net/http"
	"time"
)

// chatRequest is the body of OpenAI's chat completions; pin_version is ours.
type chatRequest struct {
	samplingParams
	Model               string        `json:"model"`
	Messages            []chatMessage `json:"messages"`
	MaxCompletionTokens *int          `json:"max_completion_tokens"` // another name of max_tokens
	Logprobs            bool          `json:"logprobs"`
	Stream              bool          `json:"stream"`
	PinVersion          *int64        `json:"pin_version"`
}

type chatMessage struct {
	Role      string          `json:"role"`
	Content   chatContent     `json:"content"`
	ToolCalls json.RawMessage `json:"tool_calls,omitempty"`
}

// chatContent is a text, null, or a list of texts.
type chatContent string

// UnmarshalJSON refuses parts that are no text.
func (c *chatContent) UnmarshalJSON(data []byte) error {
	var text *string
	if err := json.Unmarshal(data, &text); err == nil {
		if text != nil {
			*c = chatContent(*text)
		}
		return nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(data, &parts); err != nil {
		return refuse(http.StatusBadRequest, CodeInvalid, "content of a message: want a text or a list of text parts")
	}
	for _, p := range parts {
		if p.Type != "text" {
			return refuse(http.StatusBadRequest, CodeUnsupported, "content of type %q is not supported by this server", p.Type)
		}
		*c += chatContent(p.Text)
	}
	return nil
}

type chatReply struct {
	ID             string       `json:"id"`
	Object         string       `json:"object"`
	Created        int64        `json:"created"` // Unix seconds
	Model          string       `json:"model"`
	Choices        []chatChoice `json:"choices"`
	Usage          chatUsage    `json:"usage"`
	PromptTokenIDs []int32      `json:"prompt_token_ids"`
}

type chatChoice struct {
	Index        int           `json:"index"`
	Message      chatMessage   `json:"message"`
	FinishReason string        `json:"finish_reason"`
	Logprobs     *chatLogprobs `json:"logprobs"`
	TokenIDs     []int32       `json:"token_ids"`
	Versions     []versionSpan `json:"policy_versions"`
}

type chatLogprobs struct {
	Content []chatLogprob `json:"content"`
}

type chatLogprob struct {
	tokenLogprob
	Bytes       []int          `json:"bytes"`
	TopLogprobs []tokenLogprob `json:"top_logprobs"`
}

type chatUsage struct {
	PromptTokens     int `json:"prompt_tokens"`
	CompletionTokens int `json:"completion_tokens"`
	TotalTokens      int `json:"total_tokens"`
}

// UnmarshalJSON refuses parameters that are not supported.
func (c *chatRequest) UnmarshalJSON(data []byte) error {
	type plain chatRequest
	if err := json.Unmarshal(data, (*plain)(c)); err != nil {
		return err
	}
	if c.Stream {
		return errStream
	}
	return checkSupported(data)
}

func (s *Server) handleChat(r *http.Request, data []byte) (any, error) {
	var body chatRequest
	if err := decodeBody(data, &body); err != nil {
		return nil, err
	}
	tok, err := s.tokenizer(r.Context())
	if err != nil {
		return nil, err
	}
	prompt, err := renderChat(tok, body.Messages)
	if err != nil {
		return nil, err
	}
	if body.MaxCompletionTokens != nil {
		body.MaxTokens = body.MaxCompletionTokens
	}
	req := Request{Tokens: prompt, PinVersion: body.PinVersion, Model: body.Model}
	if err := body.apply(&req, tok.EOS()); err != nil {
		return nil, err
	}
	c, err := s.Generate(r.Context(), req)
	if err != nil {
		return nil, err
	}
	name := body.Model
	if name == "" {
		name = s.cfg.Model
	}
	choice := chatChoice{
		Message:      chatMessage{Role: "assistant", Content: chatContent(tok.Decode(c.Tokens))},
		FinishReason: c.FinishReason, TokenIDs: c.Tokens, Versions: spansOf(c.Versions),
	}
	if body.Logprobs {
		choice.Logprobs = &chatLogprobs{Content: make([]chatLogprob, len(c.Tokens))}
		for i, t := range c.Tokens {
			choice.Logprobs.Content[i] = chatLogprob{tokenLogprob{tok.Token(t), c.Logprobs[i]}, nil, []tokenLogprob{}}
		}
	}
	return chatReply{
		ID: s.nextID("chatcmpl"), Object: "chat.completion", Created: time.Now().Unix(), Model: name,
		Choices: []chatChoice{choice}, PromptTokenIDs: prompt,
		Usage: chatUsage{len(prompt), len(c.Tokens), len(prompt) + len(c.Tokens)},
	}, nil
}

// renderChat gives the tokens of a conversation that the policy is to answer.
func renderChat(tok Tokenizer, messages []chatMessage) ([]int32, error) {
	if len(messages) == 0 {
		return nil, refuse(http.StatusBadRequest, CodeInvalid, "messages is empty")
	}
	var prompt []int32
	for i, m := range messages {
		if len(m.ToolCalls) > 0 && !asksForNothing(m.ToolCalls, nil) {
			return nil, refuse(http.StatusBadRequest, CodeUnsupported, "messages[%d] has tool_calls, which this server does not support", i)
		}
		tokens, err := tok.RenderMessage(m.Role, string(m.Content))
		if err != nil {
			return nil, refuse(http.StatusBadRequest, CodeInvalid, "messages[%d]: %v", i, err)
		}
		prompt = append(prompt, tokens...)
	}
	return append(prompt, tok.GenerationPrompt()...), nil
}
