package env

import (
	"errors"
	"fmt"
	"strings"
)

// Role says who a message is from.
type Role string

// The roles of the chat format that language models are trained on.
const (
	RoleSystem    Role = "system"
	RoleUser      Role = "user"
	RoleAssistant Role = "assistant"
	RoleTool      Role = "tool"
)

// Message is one message of a conversation.
type Message struct {
	Role    Role   `json:"role"`
	Content string `json:"content"`
	// Images are shown in front of Content, in order.
	Images []Image `json:"images,omitempty"`
	// ToolCalls are the calls an assistant message makes, in order.
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
	// ToolCallID is the call that a tool message answers.
	ToolCallID string `json:"tool_call_id,omitempty"`
	// Agent is in whose conversation the message stands, where an episode has several agents ([MultiAgent]); a [Session] sets it.
	Agent string `json:"agent,omitempty"`
}

// Image is a picture in a message.
type Image struct {
	// MIME is its format, such as image/png.
	MIME string `json:"mime"`
	Data []byte `json:"data"`
	// Alt is what a model without eyes is shown in its place: all that is needed to go on. Without it such a model cannot play.
	Alt string `json:"alt,omitempty"`
}

// LargestImage is how many bytes an image may have.
const LargestImage = 8 << 20

// Check returns an error if the image cannot be shown.
func (i Image) Check() error {
	switch {
	case !strings.HasPrefix(i.MIME, "image/"):
		return fmt.Errorf("an image of type %q: want one such as image/png", i.MIME)
	case len(i.Data) == 0:
		return errors.New("an image without data")
	case len(i.Data) > LargestImage:
		return fmt.Errorf("an image of %d bytes: at most %d", len(i.Data), LargestImage)
	}
	return nil
}

// Text is what a model without eyes is shown of the message: a line "[image: …]" for each image, then the content. An image
// without Alt is an error.
func (m Message) Text() (string, error) {
	for k, i := range m.Images {
		if i.Alt == "" {
			return "", fmt.Errorf("image %d of a message has no alt text: a model that reads only text cannot play this environment", k)
		}
	}
	if m.Content == "" {
		return strings.TrimSuffix(m.alts(), "\n"), nil
	}
	return m.alts() + m.Content, nil
}

// SetText sets the content of a message with images to that of a text which Text gave.
func (m *Message) SetText(text string) {
	m.Content = strings.TrimPrefix(text+"\n", m.alts())
	m.Content = strings.TrimSuffix(m.Content, "\n")
}

func (m Message) alts() (lines string) {
	for _, i := range m.Images {
		lines += "[image: " + i.Alt + "]\n"
	}
	return lines
}

// ToolCall is a call that the policy made.
type ToolCall struct {
	ID   string `json:"id"`
	Name string `json:"name"`
	// Arguments is meant to be a JSON object; it is the policy's text and may be anything.
	Arguments string `json:"arguments"`
}

// System is a message of system role.
func System(content string) Message { return Message{Role: RoleSystem, Content: content} }

// User is a message of user role.
func User(content string) Message { return Message{Role: RoleUser, Content: content} }

// Assistant is a message of assistant role.
func Assistant(content string) Message { return Message{Role: RoleAssistant, Content: content} }
