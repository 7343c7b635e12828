package render

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"
)

const (
	headerStart = "<|start_header_id|>"
	headerEnd   = "<|end_header_id|>"
	turnEnd     = "<|eot_id|>"
	messageEnd  = "<|eom_id|>" // behind a call, after which the turn goes on
	textEnd     = "<|end_of_text|>"
	textBegin   = "<|begin_of_text|>"
)

// today is the date in the system message: that of the template where no other is given. There is no clock here (I6).
const today = "26 Jul 2024"

// llama is the format of Llama 3: a header with the role, a text without space around it, <|eot_id|>.
type llama struct {
	tokenizer
	tools bool // since 3.1: a system message always, with a date; tools in the first message of the user, called in JSON
}

func newLlama3(t tokenizer) (Renderer, error) { return newLlama(llama{tokenizer: t}) }

func newLlama31(t tokenizer) (Renderer, error) { return newLlama(llama{tokenizer: t, tools: true}) }

func newLlama(l llama) (Renderer, error) {
	if err := l.need(textBegin, headerStart, headerEnd, turnEnd); err != nil {
		return nil, err
	}
	l.stop = l.have(turnEnd, messageEnd, textEnd)
	return &l, nil
}

func (l *llama) Begin(messages []Message, tools []Tool) ([]Rendered, error) {
	if len(tools) > 0 && !l.tools {
		return nil, errors.New("the format llama3 has no tools: llama3.1 has them")
	}
	messages = slices.Clone(messages)
	made := 0 // messages whose text is what it should be
	if l.tools {
		if len(messages) == 0 || messages[0].Role != roleSystem {
			messages = slices.Insert(messages, 0, Message{Role: roleSystem})
		}
		text := "Cutting Knowledge Date: December 2023\nToday Date: " + today + "\n\n" + trim(messages[0].Content)
		if len(tools) > 0 {
			text = "Environment: ipython\n" + text
		}
		messages[0].Content, made = text, 1
	}
	if len(tools) > 0 {
		text, err := llamaTools(tools)
		if err != nil {
			return nil, err
		}
		if len(messages) < 2 || messages[1].Role != roleUser {
			return nil, errors.New("the format llama3.1 tells of tools in the first message of the user: there is none behind the system message")
		}
		messages[1].Content, made = text+trim(messages[1].Content), 2
	}
	return l.render(l.have(textBegin), messages, made)
}

func (l *llama) Extend(answer []int32, messages []Message) ([]Rendered, error) {
	var lead []int32
	if n := len(answer); n > 0 {
		if !slices.Contains(l.have(turnEnd, messageEnd), answer[n-1]) {
			lead = l.have(turnEnd)
		}
	}
	return l.render(lead, messages, 0)
}

// llamaTools is how Llama 3.1 is told of tools.
func llamaTools(tools []Tool) (string, error) {
	texts, err := describeAll(tools, 4)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	b.WriteString("Given the following functions, please respond with a JSON for a function call with its proper arguments that best answers the given prompt.\n\n" +
		`Respond in the format {"name": function name, "parameters": dictionary of argument name and its value}.` + "Do not use variables.\n\n")
	for _, text := range texts {
		b.WriteString(text + "\n\n")
	}
	return b.String(), nil
}

// render renders messages, the first of which begins with lead; the texts of some of the first are already made.
func (l *llama) render(lead []int32, messages []Message, made int) ([]Rendered, error) {
	out := make([]Rendered, len(messages))
	for i, m := range messages {
		role, content := m.Role, m.Content
		if i >= made {
			var err error
			if role, content, err = l.says(m); err != nil {
				return nil, fmt.Errorf("message %d: %w", i, err)
			}
		}
		out[i] = newWriter(l.tok, m, lead).marker(headerStart).string(role).marker(headerEnd).string("\n\n").own(content).marker(turnEnd).rendered()
		lead = nil
	}
	return out, nil
}

// says is the role and the text that the template gives a message.
func (l *llama) says(m Message) (role, text string, err error) {
	switch {
	case m.Role == roleTool && l.tools:
		return "ipython", quote(m.Content), nil
	case len(m.ToolCalls) > 0 && (!l.tools || len(m.ToolCalls) > 1 || m.Role != roleAssistant):
		return "", "", fmt.Errorf("%d tool calls of the %s: Llama 3 has none, and 3.1 one at a time", len(m.ToolCalls), m.Role)
	case len(m.ToolCalls) == 1:
		arguments, err := toJSON([]byte(m.ToolCalls[0].Arguments), 0)
		if err != nil {
			return "", "", fmt.Errorf("arguments of the tool call: %w", err)
		}
		return m.Role, `{"name": "` + m.ToolCalls[0].Name + `", "parameters": ` + arguments + "}", nil
	case m.Role == roleSystem || m.Role == roleUser || m.Role == roleAssistant:
		return m.Role, trim(m.Content), nil
	}
	return "", "", fmt.Errorf("role %q is unknown to the format", m.Role)
}

// trim is Python's str.strip: of what it counts as space, four control characters are no space to Unicode.
func trim(text string) string {
	return strings.TrimFunc(text, func(r rune) bool { return unicode.IsSpace(r) || r >= 0x1c && r <= 0x1f })
}

func (l *llama) GenerationPrompt() []int32 {
	return newWriter(l.tok, Message{}, nil).marker(headerStart).string(roleAssistant).marker(headerEnd).string("\n\n").rendered().Tokens
}

func (l *llama) CallStop() []int32 { return nil } // a call is all of an answer

// Parse takes an answer that is a JSON object with a name for a call, which nothing else stands beside.
func (l *llama) Parse(answer []int32, tools bool) Answer {
	s := l.hear(answer)
	text := strings.TrimSpace(s.text)
	if !tools || !l.tools || !isCall(text) {
		return s.part(0, len(s.text))
	}
	a := s.part(len(s.text), len(s.text))
	a.Calls = []Call{parseCall(text, "parameters")}
	return a
}

// isCall reports whether a text is meant as a call.
func isCall(text string) bool {
	rest, ok := strings.CutPrefix(text, "{")
	return ok && strings.HasPrefix(strings.TrimLeft(rest, " \n\t\r"), `"name"`)
}
