package try

import (
	"encoding/base64"
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

	fields map[string]any // further ones, over these; nil leaves one out
}

type chatMessage struct {
	Role       string     `json:"role"`
	Content    any        `json:"content"` // a text, parts, or null beside tool calls
	ToolCalls  []chatCall `json:"tool_calls,omitempty"`
	ToolCallID string     `json:"tool_call_id,omitempty"`
}

// part is one of a content that is not text alone.
type part struct {
	Type  string    `json:"type"`
	Text  string    `json:"text,omitempty"`
	Image *imageURL `json:"image_url,omitempty"`
}

type imageURL struct {
	URL string `json:"url"`
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
	raw       []byte // all that the server said
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
	a := answer{message: env.Assistant(string(m.Content)), reasoning: m.Reasoning, cut: choice.FinishReason == "length", raw: body}
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

// sent are messages as servers take them; with alt images are shown by their alt texts. A tool's answer is text alone: its
// images follow the answers in a message of the user.
func sent(messages []env.Message, alt bool) (out []chatMessage, err error) {
	var late []part
	flush := func() {
		if len(late) > 0 {
			out, late = append(out, chatMessage{Role: string(env.RoleUser), Content: late}), nil
		}
	}
	for _, m := range messages {
		if m.Role != env.RoleTool {
			flush()
		}
		text := m.Content
		var images []part
		if alt {
			if text, err = m.Text(); err != nil {
				return nil, err
			}
		} else {
			images = parts(m.Images)
		}
		text = strings.ToValidUTF8(text, "\uFFFD")
		c := chatMessage{Role: string(m.Role), ToolCallID: m.ToolCallID}
		switch {
		case len(images) > 0 && m.Role == env.RoleTool:
			c.Content, late = text, append(late, images...)
		case len(images) > 0 && text != "":
			c.Content = append(images, part{Type: "text", Text: text})
		case len(images) > 0:
			c.Content = images
		case text != "" || len(m.ToolCalls) == 0:
			c.Content = text
		}
		for _, t := range m.ToolCalls {
			call := chatCall{ID: t.ID, Type: "function"}
			call.Function.Name, call.Function.Arguments = t.Name, arguments(t.Arguments)
			c.ToolCalls = append(c.ToolCalls, call)
		}
		out = append(out, c)
	}
	flush()
	return out, nil
}

// parts are images as data: URLs.
func parts(images []env.Image) (out []part) {
	for _, i := range images {
		out = append(out, part{Type: "image_url", Image: &imageURL{"data:" + i.MIME + ";base64," + base64.StdEncoding.EncodeToString(i.Data)}})
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
