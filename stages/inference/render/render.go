// Package render turns conversations into the tokens that a policy sees, and the tokens it samples into what it says.
//
// What holds: a conversation is the concatenation of its messages' tokens, and appending to it never changes what stands
// (I7). The policy's answers are never rendered: they stay token by token as they were sampled, after whatever happens;
// where a model's own template would write history anew (Qwen3 drops the reasoning of earlier turns) it stays. Text of a
// message never becomes a special token, so no message can end a turn or forge a role: a tokenizer in which the tokens that
// do so are not special is refused.
//
// Added tokens that are not special, as Qwen's <think>, <tool_call> and </tool_response> are not, are found in the text of
// any message, an environment's included, as Hugging Face's tokenizers find them, since so the models were trained to read
// it. What a tool returns can thus look, within its own turn, as if it ended there and another tool's answer began. It can
// call no tool and end no reasoning of the policy: these are looked for in what was sampled, and nowhere else. An
// environment that shows text of others should take the markers out where that matters to it.
//
// A renderer knows one chat format and has one tokenizer, read from a tokenizer.json:
//
//	native            the models of package lm; tools told, and called, in text
//	chatml            <|im_start|> and <|im_end|>; tools as Qwen3-Instruct-2507 has them
//	qwen2.5           the same, with a system message of its own where there is none
//	qwen3             the same as chatml, with reasoning in <think>
//	qwen3-nonthinking the same, asked not to reason
//	llama3            header ids, no tools
//	llama3.1          header ids (3.1 to 3.3), tools called in JSON
//
// Everything here is pure: no clock, no network, no state. The same messages are the same tokens for ever (I6).
package render

import "encoding/json"

// Roles of messages.
const (
	roleSystem    = "system"
	roleUser      = "user"
	roleAssistant = "assistant"
	roleTool      = "tool"
)

// A Message is one message of a conversation.
type Message struct {
	Role       string // system, user, assistant or tool
	Content    string
	Reasoning  string     // of an assistant, before the content
	ToolCalls  []ToolCall // of an assistant, behind the content
	ToolCallID string     // of a tool: the call it answers
	Name       string     // of a tool
}

// A ToolCall is a call of a tool by the policy.
type ToolCall struct {
	ID, Name  string
	Arguments string // JSON
}

// A Tool is what the policy is told of one.
type Tool struct {
	Name, Description string
	Parameters        json.RawMessage // JSON Schema of the arguments object
}

// Rendered is a message as the policy sees it. Its content may be more than was asked for: most formats tell of tools in
// the system message.
type Rendered struct {
	Message
	Tokens   []int32
	From, To int // Tokens[From:To] hold the content; the others are scaffolding
}

// An Answer is what the policy says with the tokens it sampled.
type Answer struct {
	Content   string // without reasoning, and without tool calls where the format keeps them apart
	Reasoning string
	Calls     []Call
	From, To  int  // tokens [From, To) of the answer decode to a text that contains Content
	Ended     bool // the last token ends the turn
}

// A Call is a tool call as the policy wrote it. Err says what is wrong with one that cannot be read; it has no name then,
// and Arguments are all of its text.
type Call struct {
	Name, Arguments string
	Err             error
}

// A Renderer speaks one chat format. It is immutable, and for many goroutines at once.
type Renderer interface {
	// Begin renders a conversation, with what the policy is told of tools. The tokens of all messages, joined, are those of
	// the format's template without the generation prompt. There may be a message more than was asked for, at the start.
	// Errors are the caller's: a role that the format does not know, a schema that is no JSON.
	Begin(messages []Message, tools []Tool) ([]Rendered, error)
	// Extend renders messages that follow on an answer, or on a whole message if answer is empty. What is missing of the
	// answer's end is at the start of the first message: an answer that was cut is closed there.
	Extend(answer []int32, messages []Message) ([]Rendered, error)
	// GenerationPrompt is what stands before an answer.
	GenerationPrompt() []int32
	// Stop are the tokens that end an answer: those that end a turn.
	Stop() []int32
	// CallStop are the tokens that end a tool call; none where the format has no token for that.
	CallStop() []int32
	// Parse takes an answer apart; calls are looked for if the policy was told of tools.
	Parse(answer []int32, tools bool) Answer
	// Encode gives the tokens of a raw prompt as the tokenizer's own library does: names of special tokens in it become
	// these (not with the native tokenizer, which has no such names), and a token that begins every text comes first. It is
	// for those who write the whole prompt, never for text of a message.
	Encode(text string) []int32
	// Decode gives the text of tokens, without special ones. Bytes that are not UTF-8 become U+FFFD.
	Decode(tokens []int32) string
	// Text gives the bytes that a token adds to the text of an answer: none for a special one, unless Parse looks for it.
	Text(id int32) string
	// Token is one token as text for people: special ones by name.
	Token(id int32) string
	// VocabSize is the number of token ids.
	VocabSize() int
	// ID is equal for renderers of the same format with the same tokenizer.
	ID() string
}
