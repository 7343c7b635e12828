package render

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
)

// asked is a conversation as the template gets it.
type asked struct {
	Format   string            `json:"format"` // of the template
	Messages []askedMessage    `json:"messages"`
	Tools    []json.RawMessage `json:"tools,omitempty"`
	Quiet    bool              `json:"quiet,omitempty"`
	Grow     bool              `json:"grow,omitempty"` // what stands before each answer is wanted, too

	renderer string
	messages []Message
	tools    []Tool
}

type askedMessage struct {
	Role      string      `json:"role"`
	Content   string      `json:"content"`
	Reasoning string      `json:"reasoning_content,omitempty"`
	ToolCalls []askedCall `json:"tool_calls,omitempty"`
}

type askedCall struct {
	Type     string `json:"type"`
	Function struct {
		Name      string `json:"name"`
		Arguments string `json:"arguments"`
	} `json:"function"`
}

// maker makes random cases.
type maker struct{ *rand.Rand }

// scripts are ranges of characters that texts are made of.
var scripts = [][2]rune{
	{0x20, 0x7e}, {0x20, 0x7e}, {'a', 'z'}, {'a', 'z'}, {0, 0x24f}, {0x300, 0x36f}, {0x370, 0x6ff}, {0x700, 0xdff}, {0xe00, 0xfff}, {0x1100, 0x11ff},
	{0x1ab0, 0x1aff}, {0x1dc0, 0x20cf}, {0x2100, 0x2bff}, {0x3000, 0x30ff}, {0x4e00, 0x4fff}, {0xa000, 0xabff}, {0xac00, 0xad00}, {0xf900, 0xffff},
	{0x10000, 0x14fff}, {0x16000, 0x1ffff}, {0x1f300, 0x1faff}, {0x20000, 0x323af}, {0xe0100, 0xe01ef}, {0, 0x10ffff},
}

var bits = []string{" ", "  ", "\n", "\n\n", "\r\n", "\t", " \n ", "\u00a0", "\u3000", "\u0085", "\x1c", "'s", "'LL", "'ſab", "ſab", "'Sab", "Sab", "don't", "I'M", "0", "123456", "٣٤", "½", "²³",
	"the ", "Hello, world!", "e\u0301", "a\u0323\u0307", "\u1100\u1161\u11a8", ">\u0338", "=\u0338", "...", "!!\n", "```go\n", "{\"a\": 1}", "👩‍👩‍👧", "abc d", "ab",
	"<tool_call>", "</tool_call>", "<tool_response>", "<think>", "<|im_start", "<|", "|>", "<tool_call", "im_end|>", "<<think>>"}

// word is one bit, or some characters of one script.
func (m maker) word() string {
	if m.IntN(2) == 0 {
		return bits[m.IntN(len(bits))]
	}
	var b strings.Builder
	script := scripts[m.IntN(len(scripts))]
	for range 1 + m.IntN(7) {
		if r := script[0] + m.Int32N(script[1]-script[0]+1); r < 0xd800 || r > 0xdfff {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// unspecial spoils what bits happen to spell.
var unspecial = strings.NewReplacer("<|im_end|>", "<|im_end |>", "<|im_start|>", "<|im_start |>")

// text has no special tokens.
func (m maker) text(words int) string {
	var b strings.Builder
	for range m.IntN(words + 1) {
		b.WriteString(m.word())
	}
	return unspecial.Replace(b.String())
}

// json is a value, its numbers in all spellings.
func (m maker) json(depth int) string {
	var items []string
	switch k := m.IntN(9); {
	case k == 0:
		return []string{"0", "-0", "17", "-3", "123456789012345678901234567890", "1.0", "-0.0", "1e5", "1E-7", "0.0001", "0.00009", "1e16", "9999999999999998.0", "3.14159", "5e-324", "1.7976931348623157e308", "1e400", "-1e400"}[m.IntN(18)]
	case k == 1:
		return []string{"true", "false", "null", "[]", "{}", " [ 1 , 2 ] "}[m.IntN(6)]
	case k <= 4 || depth == 0:
		return m.string()
	case k <= 6:
		for range m.IntN(4) {
			items = append(items, m.json(depth-1))
		}
		return "[" + strings.Join(items, ",") + "]"
	}
	return m.object(depth)
}

func (m maker) object(depth int) string {
	var items []string
	for range m.IntN(4) {
		items = append(items, m.string()+":"+m.json(depth-1))
	}
	if len(items) > 1 && m.IntN(5) == 0 {
		items = append(items, items[0]) // twice
	}
	return "{" + strings.Join(items, ", ") + "}"
}

func (m maker) string() string {
	data, err := json.Marshal(m.text(3))
	if err != nil {
		panic(err)
	}
	return string(data)
}

func (m maker) tool() (Tool, json.RawMessage) {
	t := Tool{Name: fmt.Sprintf("tool_%d", m.IntN(100)), Description: m.text(6), Parameters: json.RawMessage(
		`{"type": "object", "properties": ` + m.object(2) + `, "required": ["a"], "x": ` + m.json(1) + `}`)}
	name, _ := json.Marshal(t.Name)
	description, _ := json.Marshal(t.Description)
	return t, json.RawMessage(fmt.Sprintf(`{"type": "function", "function": {"name": %s, "description": %s, "parameters": %s}}`, name, description, t.Parameters))
}

// conversation is a random one: mostly as they go, sometimes in any order.
func (m maker) conversation(renderer string) *asked {
	c := &asked{renderer: renderer, Format: renderer}
	if renderer == "qwen3-nonthinking" {
		c.Format, c.Quiet = "qwen3", true
	}
	hasTools := renderer != "llama3"
	if hasTools && m.IntN(2) == 0 {
		for range 1 + m.IntN(2) {
			tool, given := m.tool()
			c.tools, c.Tools = append(c.tools, tool), append(c.Tools, given)
		}
	}
	if m.IntN(2) == 0 {
		c.add(Message{Role: roleSystem, Content: m.text(5)})
	}
	if m.IntN(5) == 0 { // in any order
		roles := []string{roleUser, roleAssistant, roleSystem, roleTool}
		if !hasTools {
			roles = roles[:3]
		}
		c.add(Message{Role: roleUser, Content: m.text(4)})
		for range m.IntN(6) {
			msg := Message{Role: roles[m.IntN(len(roles))], Content: m.text(4)}
			if msg.Role == roleAssistant {
				msg = m.said(renderer, m.IntN(2) == 0)
			}
			c.add(msg)
		}
		return c
	}
	for range 1 + m.IntN(3) {
		c.add(Message{Role: roleUser, Content: m.text(5)})
		for hasTools && m.IntN(3) == 0 {
			calls := m.said(renderer, true)
			c.add(calls)
			for range calls.ToolCalls {
				c.add(Message{Role: roleTool, Content: m.text(6)})
			}
		}
		if m.IntN(4) > 0 {
			c.add(m.said(renderer, false))
		}
	}
	return c
}

// said is what an assistant says in a format.
func (m maker) said(renderer string, calls bool) Message {
	msg := Message{Role: roleAssistant, Content: m.text(5)}
	if m.IntN(3) == 0 {
		msg.Content = ""
	}
	if renderer == "qwen3" && m.IntN(4) > 0 {
		msg.Reasoning = m.text(5) + "."
	}
	if renderer == "qwen3" && m.IntN(8) == 0 {
		msg.Content = "<think>\n" + m.text(4) + "\n</think>\n\n" + msg.Content
	}
	if !calls || renderer == "llama3" {
		return msg
	}
	most := 3
	if renderer == "llama3.1" {
		most, msg.Content = 1, ""
	}
	for range 1 + m.IntN(most) {
		msg.ToolCalls = append(msg.ToolCalls, ToolCall{Name: fmt.Sprintf("tool_%d", m.IntN(100)), Arguments: m.object(2)})
	}
	return msg
}

func (c *asked) add(m Message) {
	c.messages = append(c.messages, m)
	given := askedMessage{Role: m.Role, Content: m.Content, Reasoning: m.Reasoning}
	for _, call := range m.ToolCalls {
		a := askedCall{Type: "function"}
		a.Function.Name, a.Function.Arguments = call.Name, call.Arguments
		given.ToolCalls = append(given.ToolCalls, a)
	}
	c.Messages = append(c.Messages, given)
}
