package try

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// pathChat and pathModels are behind the base of the API.
const (
	pathChat   = "/chat/completions"
	pathModels = "/models"
)

// chatRequest asks for one answer. Only what every server knows is in it, and what is not set is left out.
type chatRequest struct {
	Model       string        `json:"model"`
	Messages    []chatMessage `json:"messages"`
	Tools       []chatTool    `json:"tools,omitempty"`
	Temperature float64       `json:"temperature"`
	MaxTokens   int           `json:"max_tokens,omitempty"`
	Seed        *int64        `json:"seed,omitempty"`
}

type chatMessage struct {
	Role       string     `json:"role"`
	Content    *string    `json:"content"` // null beside tool calls
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

type chatCall struct {
	ID       string `json:"id"`
	Type     string `json:"type"`
	Function struct {
		Name      string    `json:"name"`
		Arguments arguments `json:"arguments"`
	} `json:"function"`
}

type chatTool struct {
	Type     string       `json:"type"`
	Function chatFunction `json:"function"`
}

type chatFunction struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	Parameters  json.RawMessage `json:"parameters"`
}

// arguments are JSON as a text. Some servers send the object itself.
type arguments string

// UnmarshalJSON reads either.
func (a *arguments) UnmarshalJSON(data []byte) error {
	var text string
	if err := json.Unmarshal(data, &text); err == nil {
		*a = arguments(text)
		return nil
	}
	*a = arguments(data)
	return nil
}

// content is a text, null, or a list of parts, of which the texts are read.
type content string

// UnmarshalJSON reads any of them.
func (c *content) UnmarshalJSON(data []byte) error {
	var text string // null leaves it empty
	if err := json.Unmarshal(data, &text); err == nil {
		*c = content(text)
		return nil
	}
	var parts []struct{ Type, Text string }
	if err := json.Unmarshal(data, &parts); err != nil {
		return errors.New("the content of a message is neither a text nor a list of parts")
	}
	var all strings.Builder
	for _, p := range parts {
		if p.Type == "text" {
			all.WriteString(p.Text)
		}
	}
	*c = content(all.String())
	return nil
}

type chatReply struct {
	Choices []struct {
		FinishReason string `json:"finish_reason"`
		Message      struct {
			Content          content    `json:"content"`
			Reasoning        string     `json:"reasoning"`
			ReasoningContent string     `json:"reasoning_content"` // what reasoning is called elsewhere
			ToolCalls        []chatCall `json:"tool_calls"`
		} `json:"message"`
	} `json:"choices"`
	Usage *struct {
		PromptTokens     int `json:"prompt_tokens"`
		CompletionTokens int `json:"completion_tokens"`
	} `json:"usage"`
}

// An answer is what the model said.
type answer struct {
	message   env.Message
	reasoning string
	cut       bool   // at the limit of tokens
	usage     *usage // nil if the server does not say
}

// usage counts tokens of one model call.
type usage struct{ prompt, completion int }

// read makes an answer of a reply's body. Calls without an id get one, since tool messages refer to it.
func read(body []byte, turn int) (answer, error) {
	var reply chatReply
	if err := json.Unmarshal(body, &reply); err != nil {
		return answer{}, fmt.Errorf("the answer is no chat completion: %w", err)
	}
	if len(reply.Choices) == 0 {
		return answer{}, errors.New("the answer is no chat completion: it has no choices")
	}
	choice := reply.Choices[0]
	m := choice.Message
	a := answer{message: env.Assistant(string(m.Content)), reasoning: m.Reasoning, cut: choice.FinishReason == "length"}
	if a.reasoning == "" {
		a.reasoning = m.ReasoningContent
	}
	for k, c := range m.ToolCalls {
		if c.Function.Arguments == "" {
			c.Function.Arguments = "{}" // as some say of a tool without arguments
		}
		if c.ID == "" {
			c.ID = fmt.Sprintf("call_%d_%d", turn, k)
		}
		a.message.ToolCalls = append(a.message.ToolCalls, env.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: string(c.Function.Arguments)})
	}
	if u := reply.Usage; u != nil {
		a.usage = &usage{u.PromptTokens, u.CompletionTokens}
	}
	return a, nil
}

// sent is a message as servers take it.
func sent(m env.Message) chatMessage {
	out := chatMessage{Role: string(m.Role), ToolCallID: m.ToolCallID}
	if text := strings.ToValidUTF8(m.Content, "\uFFFD"); text != "" || len(m.ToolCalls) == 0 {
		out.Content = &text
	}
	for _, c := range m.ToolCalls {
		call := chatCall{ID: c.ID, Type: "function"}
		call.Function.Name, call.Function.Arguments = c.Name, arguments(c.Arguments)
		out.ToolCalls = append(out.ToolCalls, call)
	}
	return out
}

// told is what a server is told of the tools.
func told(tools []env.Tool) []chatTool {
	var out []chatTool
	for _, t := range tools {
		out = append(out, chatTool{"function", chatFunction{t.Name, t.Description, t.Schema}})
	}
	return out
}
