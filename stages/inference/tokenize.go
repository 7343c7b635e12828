package inference

import (
	"encoding/json"
	"net/http"
)

// tokenizeRequest is vLLM's: a text or a chat.
type tokenizeRequest struct {
	Model     string      `json:"model"`
	Prompt    *string     `json:"prompt"`
	Messages  chatHistory `json:"messages"`
	Tools     chatTools   `json:"tools"`
	TokenStrs bool        `json:"return_token_strs"`
}

// UnmarshalJSON refuses parameters that are not supported.
func (t *tokenizeRequest) UnmarshalJSON(data []byte) error {
	if err := checkSupported(data, "tools"); err != nil {
		return err
	}
	type plain tokenizeRequest
	return json.Unmarshal(data, (*plain)(t))
}

type tokenizeReply struct {
	Count       int      `json:"count"`
	MaxModelLen int      `json:"max_model_len"`
	Tokens      []int32  `json:"tokens"`
	TokenStrs   []string `json:"token_strs"`
}

func (s *Server) handleTokenize(r *http.Request, data []byte) (any, error) {
	var body tokenizeRequest
	if err := decodeBody(data, &body); err != nil {
		return nil, err
	}
	policy, err := s.policyOf("", body.Model)
	if err != nil {
		return nil, err
	}
	speech, err := s.Renderer(r.Context())
	if err != nil {
		return nil, err
	}
	var out tokenizeReply
	switch {
	case (body.Prompt == nil) == (body.Messages == nil):
		return nil, refuse(http.StatusBadRequest, CodeInvalid, "either prompt or messages")
	case body.Prompt != nil:
		out.Tokens = append([]int32{}, speech.Encode(*body.Prompt)...)
	default:
		messages, tools, err := body.Messages.render(body.Tools)
		if err == nil {
			out.Tokens, err = renderChat(speech, messages, tools)
		}
		if err != nil {
			return nil, err
		}
	}
	out.Count = len(out.Tokens)
	out.MaxModelLen, _ = s.backend.Limits(policy)
	if body.TokenStrs {
		out.TokenStrs = []string{}
		for _, t := range out.Tokens {
			out.TokenStrs = append(out.TokenStrs, speech.Token(t))
		}
	}
	return out, nil
}

func (s *Server) handleDetokenize(r *http.Request, data []byte) (any, error) {
	var body struct {
		Model  string  `json:"model"`
		Tokens []int32 `json:"tokens"`
	}
	if err := decodeBody(data, &body); err != nil {
		return nil, err
	}
	if _, err := s.policyOf("", body.Model); err != nil {
		return nil, err
	}
	speech, err := s.Renderer(r.Context())
	if err != nil {
		return nil, err
	}
	return map[string]string{"prompt": speech.Decode(body.Tokens)}, nil
}
