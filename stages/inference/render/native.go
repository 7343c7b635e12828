package render

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/internal/lm"
)

// Native is the name of the renderer of the models of package lm.
const Native = "native"

// native is the format of the native models: a message is the role's token, the content, and </s>. Tools are told, and
// called, in text. An answer that was cut stays open: the next role's token says that it is over.
type native struct {
	*lm.Tokenizer
	id    string
	bytes int32 // the token of byte 0; -1 where tokens are characters
}

func newNative(tokenizer []byte) (Renderer, error) {
	tok, err := lm.ParseTokenizer(tokenizer)
	if err != nil {
		return nil, err
	}
	n := &native{tok, fmt.Sprintf("%s:%x", Native, sha256.Sum256([]byte(tok.Alphabet()))), -1}
	if tok.Alphabet() == "" {
		n.bytes = int32(tok.VocabSize() - 256)
	}
	return n, nil
}

func (n *native) Begin(messages []Message, tools []Tool) ([]Rendered, error) {
	if len(tools) > 0 {
		text, err := nativeTools(tools)
		if err != nil {
			return nil, err
		}
		if len(messages) > 0 && messages[0].Role == roleSystem {
			messages = slices.Clone(messages)
			messages[0].Content += "\n\n" + text
		} else {
			messages = slices.Concat([]Message{{Role: roleSystem, Content: text}}, messages)
		}
	}
	return n.Extend(nil, messages)
}

func (n *native) Extend(_ []int32, messages []Message) ([]Rendered, error) {
	out := make([]Rendered, len(messages))
	for i, m := range messages {
		tokens, err := n.RenderMessage(m.Role, m.Content+n.uncalled(m))
		if err != nil {
			return nil, fmt.Errorf("message %d: %w", i, err)
		}
		out[i] = Rendered{m, tokens, 1, len(tokens) - 1}
	}
	return out, nil
}

// uncalled are the tool calls of a message as the policy writes them, behind its content; none where the content has calls,
// as that of an answer of the policy has.
func (n *native) uncalled(m Message) string {
	if len(m.ToolCalls) == 0 {
		return ""
	}
	if said, _ := hermesCalls(m.Content, inText(m.Content)); len(said) > 0 {
		return ""
	}
	var b strings.Builder
	for i, call := range m.ToolCalls {
		if i > 0 || m.Content != "" {
			b.WriteByte('\n')
		}
		arguments, err := toJSON([]byte(call.Arguments), 0)
		if err != nil {
			arguments = call.Arguments // as it was written
		}
		b.WriteString(callOpen + "\n{\"name\": " + quote(call.Name) + ", \"arguments\": " + arguments + "}\n" + callClose)
	}
	return b.String()
}

// Text implements Renderer.
func (n *native) Text(id int32) string {
	if n.bytes < 0 {
		return n.Decode([]int32{id})
	}
	if b := id - n.bytes; b >= 0 && b < 256 {
		return string([]byte{byte(b)})
	}
	return ""
}

func (n *native) Stop() []int32 { return []int32{n.EOS()} }

func (n *native) CallStop() []int32 { return nil }

func (n *native) Parse(answer []int32, tools bool) Answer {
	a := Answer{To: len(answer)}
	if a.To > 0 && answer[a.To-1] == n.EOS() {
		a.To, a.Ended = a.To-1, true
	}
	a.Content = n.Decode(answer[:a.To])
	if tools {
		a.Calls, _ = hermesCalls(a.Content, inText(a.Content))
	}
	return a
}

func (n *native) ID() string { return n.id }
