package env

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
	// ToolCalls are the calls an assistant message makes, in order.
	ToolCalls []ToolCall `json:"tool_calls,omitempty"`
	// ToolCallID is the call that a tool message answers.
	ToolCallID string `json:"tool_call_id,omitempty"`
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
