package export

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference/render"
)

// speech knows how the run's policies are spoken to: the chat format with its tokenizer, and the tools of each environment.
type speech struct {
	renderer render.Renderer // nil where there is no tokenizer
	tools    map[string]*toolbox
}

// A toolbox is the tools of an environment.
type toolbox struct {
	told []render.Tool
	text string // in OpenAI's words
}

// learn takes the announcement of an environment.
func (s *speech) learn(info *schemas.EnvInfo) error {
	delete(s.tools, info.Env)
	if info.Tools == "" {
		return nil
	}
	var tools []env.Tool
	if err := json.Unmarshal([]byte(info.Tools), &tools); err != nil {
		return fmt.Errorf("the tools of environment %s: %w", info.Env, err)
	}
	box := &toolbox{}
	type function struct {
		Name        string          `json:"name"`
		Description string          `json:"description"`
		Parameters  json.RawMessage `json:"parameters"`
	}
	type tool struct {
		Type     string   `json:"type"`
		Function function `json:"function"`
	}
	var list []tool
	for _, t := range tools {
		box.told = append(box.told, render.Tool{Name: t.Name, Description: t.Description, Parameters: t.Schema})
		parameters := t.Schema
		if len(parameters) == 0 {
			parameters = json.RawMessage("{}")
		}
		list = append(list, tool{"function", function{t.Name, t.Description, parameters}})
	}
	text, err := json.Marshal(list)
	if err != nil {
		return fmt.Errorf("the tools of environment %s: %w", info.Env, err)
	}
	box.text = string(text)
	s.tools[info.Env] = box
	return nil
}

// write gives the messages of a conversation, the tools beside them, and whether the chat format makes its tokens of the two.
//
// Chat formats tell of tools in the text of a message, and a template that is given tools tells of them again. So where the
// environment has tools they are taken out of the text, and stand beside it; but only if the format makes the recorded prompt of
// the two, token by token. Else the text is as the policy saw it, and there are no tools beside it.
func (s *speech) write(name string, c conversation) (messages []Message, tools *string, exact *bool) {
	messages = c.messages()
	if s.renderer == nil || c.partial {
		return messages, nil, nil
	}
	var told []render.Tool
	if box := s.tools[name]; box != nil {
		if plain, ok := s.untold(c, messages, box.told); ok {
			messages, tools, told = plain, &box.text, box.told
		}
	}
	return messages, tools, new(s.exact(messages, told, c.tokens()))
}

// exact reports whether messages and tools are rendered to tokens, and nothing but white space and markers behind them.
func (s *speech) exact(messages []Message, tools []render.Tool, tokens []int32) bool {
	rendered, err := s.renderer.Begin(forRenderer(messages), tools)
	if err != nil {
		return false
	}
	var all []int32
	for _, m := range rendered {
		all = append(all, m.Tokens...)
	}
	return len(all) >= len(tokens) && slices.Equal(all[:len(tokens)], tokens) && strings.TrimSpace(s.renderer.Decode(all[len(tokens):])) == ""
}

// untold gives the messages without what they tell of tools.
func (s *speech) untold(c conversation, messages []Message, tools []render.Tool) ([]Message, bool) {
	first := slices.IndexFunc(c.nodes, said)
	var prompt []int32
	for _, n := range c.nodes[:first] {
		prompt = append(prompt, n.TokenIDs.Values()...)
	}
	for _, candidate := range s.candidates(messages, first, tools) {
		n := first - (len(messages) - len(candidate))
		if n >= 0 && len(prompt) > 0 && s.exact(candidate[:n], tools, prompt) {
			return candidate, true
		}
	}
	return nil, false
}

// Marks that no text has.
const (
	systemMark = "\x01the system message\x01"
	userMark   = "\x01the first message of the user\x01"
)

// candidates are the messages that the format may have been given: what it adds to marks is looked for in the texts.
func (s *speech) candidates(messages []Message, prompt int, tools []render.Tool) (list [][]Message) {
	marks := []render.Message{{Role: "system", Content: systemMark}, {Role: "user", Content: userMark}}
	for _, given := range [][]render.Message{marks, marks[1:]} {
		shown, err := s.renderer.Begin(given, tools)
		if err != nil {
			continue
		}
		candidate, ok := slices.Clone(messages), true
		dropped := 0
		for i, m := range shown {
			if i >= prompt {
				ok = false
				break
			}
			text, found := between(messages[i].Content, m.Content)
			switch {
			case messages[i].Role != m.Role:
				ok = false
			case i < len(shown)-len(given): // the format's own
				ok = ok && messages[i].Content == m.Content
				dropped++
			case found:
				candidate[i].Content = text
			default:
				ok = false
			}
		}
		if ok {
			list = append(list, candidate[dropped:])
		}
	}
	return list
}

// between is what stands in text where pattern has a mark.
func between(text, pattern string) (string, bool) {
	for _, mark := range []string{systemMark, userMark} {
		before, after, ok := strings.Cut(pattern, mark)
		if !ok {
			continue
		}
		text, ok = strings.CutPrefix(text, before)
		if !ok {
			return "", false
		}
		return strings.CutSuffix(text, after)
	}
	return "", false
}

func forRenderer(messages []Message) []render.Message {
	list := make([]render.Message, len(messages))
	for i, m := range messages {
		list[i] = render.Message{Role: m.Role, Content: m.Content, ToolCallID: orEmpty(m.ToolCallID), Name: orEmpty(m.Name), Reasoning: orEmpty(m.ReasoningContent)}
		for _, c := range m.ToolCalls {
			list[i].ToolCalls = append(list[i].ToolCalls, render.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
		}
	}
	return list
}

func orEmpty(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}
