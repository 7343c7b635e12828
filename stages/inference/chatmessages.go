package inference

import (
	"encoding/json"
	"net/http"
	"strings"

	"github.com/prl-project/prl/stages/inference/render"
)

// chatHistory is what was said before.
type chatHistory []chatMessage

// chatMessage is a message of the history.
type chatMessage struct {
	Role             string      `json:"role"`
	Content          chatContent `json:"content"`
	Name             string      `json:"name"`
	Reasoning        string      `json:"reasoning"`
	ReasoningContent string      `json:"reasoning_content"` // what reasoning used to be called
	ToolCallID       string      `json:"tool_call_id"`
	ToolCalls        []toolCall  `json:"tool_calls"`
}

// toolCall is a call of a function.
type toolCall struct {
	Index    *int         `json:"index,omitempty"` // in a stream
	ID       string       `json:"id"`
	Type     string       `json:"type"`
	Function functionCall `json:"function"`
}

type functionCall struct {
	Name      string `json:"name"`
	Arguments string `json:"arguments"` // JSON
}

// chatContent is a text, null, or a list of texts.
type chatContent string

// UnmarshalJSON refuses parts that are no text.
func (c *chatContent) UnmarshalJSON(data []byte) error {
	var text *string
	*c = ""
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
	var all strings.Builder
	for _, p := range parts {
		if p.Type != "text" {
			return refuse(http.StatusBadRequest, CodeUnsupported, "content of type %q is not supported by this server", p.Type)
		}
		all.WriteString(p.Text)
	}
	*c = chatContent(all.String())
	return nil
}

// chatTools are what the policy is told of functions.
type chatTools []struct {
	Type     string `json:"type"`
	Function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	} `json:"function"`
}

// render gives the tools as the renderer takes them.
func (t chatTools) render() ([]render.Tool, error) {
	var out []render.Tool
	for i, tool := range t {
		f := tool.Function
		switch {
		case tool.Type != "function":
			return nil, refuse(http.StatusBadRequest, CodeUnsupported, "tools[%d] is a %q: this server has functions only", i, tool.Type)
		case f.Name == "":
			return nil, refuse(http.StatusBadRequest, CodeInvalid, "tools[%d] has no name", i)
		}
		out = append(out, render.Tool{Name: f.Name, Description: f.Description, Parameters: f.Parameters})
	}
	return out, nil
}

// toolChoice is whether the policy may call tools. That it must cannot be made sure of without a grammar for sampling.
type toolChoice string

const toolsNone toolChoice = "none"

// UnmarshalJSON refuses what is neither none nor auto.
func (t *toolChoice) UnmarshalJSON(data []byte) error {
	if !asksForNothing(data, []string{`"none"`, `"auto"`}) {
		return refuse(http.StatusBadRequest, CodeUnsupported, "tool_choice = %s is not supported by this server: \"auto\" or \"none\"", data)
	}
	*t = ""
	if string(data) == `"none"` {
		*t = toolsNone
	}
	return nil
}

// render gives the history and the tools as the renderer takes them.
func (h chatHistory) render(told chatTools) ([]render.Message, []render.Tool, error) {
	if len(h) == 0 {
		return nil, nil, refuse(http.StatusBadRequest, CodeInvalid, "messages is empty")
	}
	tools, err := told.render()
	if err != nil {
		return nil, nil, err
	}
	messages := make([]render.Message, len(h))
	for i, m := range h {
		messages[i] = render.Message{Role: m.Role, Content: string(m.Content), Reasoning: m.Reasoning, ToolCallID: m.ToolCallID, Name: m.Name}
		if m.Reasoning == "" {
			messages[i].Reasoning = m.ReasoningContent
		}
		for _, c := range m.ToolCalls {
			if m.Role != "assistant" || c.Function.Name == "" {
				return nil, nil, refuse(http.StatusBadRequest, CodeInvalid, "messages[%d] has tool_calls: want role assistant and the name of a function", i)
			}
			messages[i].ToolCalls = append(messages[i].ToolCalls, render.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
	}
	return messages, tools, nil
}

// renderChat gives the tokens of a conversation that the policy is to answer.
func renderChat(r render.Renderer, messages []render.Message, tools []render.Tool) ([]int32, error) {
	rendered, err := r.Begin(messages, tools)
	if err != nil {
		return nil, refuse(http.StatusBadRequest, CodeInvalid, "%v", err)
	}
	var prompt []int32
	for _, m := range rendered {
		prompt = append(prompt, m.Tokens...)
	}
	return append(prompt, r.GenerationPrompt()...), nil
}
