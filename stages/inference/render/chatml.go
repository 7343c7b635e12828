package render

import (
	"fmt"
	"slices"
	"strings"
)

const (
	chatStart     = "<|im_start|>"
	chatEnd       = "<|im_end|>"
	chatTextEnd   = "<|endoftext|>"
	thinkOpen     = "<think>"
	thinkClose    = "</think>"
	responseOpen  = "<tool_response>"
	responseClose = "</tool_response>"
)

// chatML is the format of <|im_start|> and <|im_end|>, as Qwen's templates have it: tools in the system message, calls as
// Hermes writes them, answers of tools that follow each other in one turn of the user.
type chatML struct {
	tokenizer
	system  string // the system message where there is none
	reasons bool   // what an assistant says begins with <think>
	silent  bool   // the generation prompt has said that there is no reasoning
	newline []int32
	end     int32
}

func newChatML(t tokenizer) (Renderer, error) { return chatml(chatML{tokenizer: t}) }

func newQwen25(t tokenizer) (Renderer, error) {
	return chatml(chatML{tokenizer: t, system: "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."})
}

func newQwen3(t tokenizer) (Renderer, error) { return chatml(chatML{tokenizer: t, reasons: true}) }

func newQwen3Silent(t tokenizer) (Renderer, error) {
	return chatml(chatML{tokenizer: t, reasons: true, silent: true})
}

func chatml(c chatML) (Renderer, error) {
	if err := c.need(chatStart, chatEnd); err != nil {
		return nil, err
	}
	c.stop = c.have(chatEnd, chatTextEnd)
	c.end, c.newline = c.stop[0], c.tok.AppendText(nil, "\n")
	return &c, nil
}

func (c *chatML) Begin(messages []Message, tools []Tool) ([]Rendered, error) {
	system, rest := Message{Role: roleSystem, Content: c.system}, messages
	told := c.system != ""
	if len(messages) > 0 && messages[0].Role == roleSystem {
		system, rest, told = messages[0], messages[1:], true
	}
	if len(tools) > 0 {
		text, err := qwenTools(tools)
		if err != nil {
			return nil, err
		}
		if told {
			text = system.Content + "\n\n" + text
		}
		system.Content, told = text, true
	}
	var out []Rendered
	if told {
		out = append(out, c.plain(system, nil))
	}
	// Without a query all answers count as earlier ones.
	query := lastQuery(rest)
	if query < 0 {
		query = len(rest)
	}
	return c.render(out, nil, rest, query)
}

func (c *chatML) Extend(answer []int32, messages []Message) ([]Rendered, error) {
	var lead []int32
	if n := len(answer); n > 0 {
		if answer[n-1] != c.end {
			lead = append(lead, c.end)
		}
		lead = append(lead, c.newline...)
	}
	return c.render(nil, lead, messages, lastQuery(messages))
}

// qwenTools is how Qwen's models are told of tools.
func qwenTools(tools []Tool) (string, error) {
	texts, err := describeAll(tools, 0)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("# Tools\n\nYou may call one or more functions to assist with the user query.\n\n" +
		"You are provided with function signatures within <tools></tools> XML tags:\n<tools>")
	for _, text := range texts {
		b.WriteString("\n" + text)
	}
	b.WriteString("\n</tools>\n\nFor each function call, return a json object with function name and arguments within <tool_call></tool_call> XML tags:\n" +
		"<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>")
	return b.String(), nil
}

// isQuery reports whether a user asks something, other than in the form of a tool's answer.
func isQuery(m Message) bool {
	return m.Role == roleUser && !(strings.HasPrefix(m.Content, responseOpen) && strings.HasSuffix(m.Content, responseClose))
}

// lastQuery is the index of the last message in which a user asks something, or -1.
func lastQuery(messages []Message) int {
	for i, m := range slices.Backward(messages) {
		if isQuery(m) {
			return i
		}
	}
	return -1
}

// render appends messages, the first of which begins with lead. What assistants reasoned is shown behind the query.
func (c *chatML) render(out []Rendered, lead []int32, messages []Message, query int) ([]Rendered, error) {
	role := func(i int) string {
		if i < 0 || i >= len(messages) {
			return ""
		}
		return messages[i].Role
	}
	for i, m := range messages {
		var r Rendered
		switch m.Role {
		case roleSystem, roleUser:
			r = c.plain(m, lead)
		case roleAssistant:
			r = c.assistant(m, lead, i > query, i == len(messages)-1)
		case roleTool:
			w := newWriter(c.tok, m, lead)
			if role(i-1) != roleTool {
				w.marker(chatStart).string(roleUser)
			}
			w.string("\n").marker(responseOpen).string("\n").own(m.Content).string("\n").marker(responseClose)
			if role(i+1) != roleTool {
				w.marker(chatEnd).string("\n")
			}
			r = w.rendered()
		default:
			return nil, fmt.Errorf("message %d: role %q is none of system, user, assistant, tool", i, m.Role)
		}
		out, lead = append(out, r), nil
	}
	return out, nil
}

func (c *chatML) plain(m Message, lead []int32) Rendered {
	return newWriter(c.tok, m, lead).marker(chatStart).string(m.Role + "\n").own(m.Content).marker(chatEnd).string("\n").rendered()
}

// assistant renders what an assistant said before, which is never what the policy sampled in this conversation.
func (c *chatML) assistant(m Message, lead []int32, current, last bool) Rendered {
	w := newWriter(c.tok, m, lead).marker(chatStart).string(m.Role + "\n").begin()
	reasoning, content := m.Reasoning, m.Content
	if c.reasons && reasoning == "" && strings.Contains(content, thinkClose) {
		reasoning, content = cutReasoning(content)
	}
	said := content
	if c.reasons && current && (last || reasoning != "") {
		w.marker(thinkOpen).string("\n" + strings.Trim(reasoning, "\n") + "\n").marker(thinkClose).string("\n\n")
		said = strings.TrimLeft(content, "\n")
	}
	w.string(said)
	for i, call := range m.ToolCalls {
		if i > 0 || content != "" {
			w.string("\n")
		}
		arguments, err := toJSON([]byte(call.Arguments), 0)
		if err != nil {
			arguments = call.Arguments // as it was written
		}
		w.marker(callOpen).string("\n{\"name\": \"" + call.Name + "\", \"arguments\": " + arguments + "}\n").marker(callClose)
	}
	return w.end().marker(chatEnd).string("\n").rendered()
}

// cutReasoning takes the reasoning out of a content that has it.
func cutReasoning(content string) (reasoning, rest string) {
	first, _, _ := strings.Cut(content, thinkClose)
	first = strings.TrimRight(first, "\n")
	if i := strings.LastIndex(first, thinkOpen); i >= 0 {
		first = first[i+len(thinkOpen):]
	}
	rest = content[strings.LastIndex(content, thinkClose)+len(thinkClose):]
	return strings.TrimLeft(first, "\n"), strings.TrimLeft(rest, "\n")
}

func (c *chatML) GenerationPrompt() []int32 {
	w := newWriter(c.tok, Message{}, nil).marker(chatStart).string(roleAssistant + "\n")
	if c.silent {
		w.marker(thinkOpen).string("\n\n").marker(thinkClose).string("\n\n")
	}
	return w.rendered().Tokens
}

func (c *chatML) CallStop() []int32 { return c.have(callClose) }

func (c *chatML) Parse(answer []int32, tools bool) Answer {
	s := c.hear(answer)
	from, to := 0, len(s.text)
	reasoning := ""
	if c.reasons {
		open, closing := s.find(thinkOpen, 0), s.find(thinkClose, 0)
		begun := open >= 0 && strings.TrimSpace(s.text[:open]) == ""
		switch {
		case closing >= 0 && (begun || !c.silent):
			reasoning, from = s.text[:closing], closing+len(thinkClose)
		case begun:
			reasoning, from = s.text, to // it was cut before it had said anything
		}
		if begun {
			reasoning = strings.TrimPrefix(reasoning[open:], thinkOpen)
		}
	}
	var calls []Call
	if tools {
		calls, to = hermesCalls(s.text[:to], func(marker string, at int) int { return s.find(marker, max(at, from)) })
	}
	for from < to && s.text[from] == '\n' && from > 0 {
		from++
	}
	for len(calls) > 0 && from < to && s.text[to-1] == '\n' {
		to--
	}
	a := s.part(from, to)
	a.Reasoning, a.Calls = valid(strings.Trim(reasoning, "\n")), calls
	return a
}
