package inference

import (
	"slices"
	"strings"

	"github.com/prl-project/prl/stages/inference/render"
)

// finishToolCalls is OpenAI's reason of an answer that ended with tool calls.
const finishToolCalls = "tool_calls"

// chatAnswer is a message of the policy, or the next piece of one.
type chatAnswer struct {
	Role      string     `json:"role,omitempty"`
	Content   *string    `json:"content,omitempty"`
	Reasoning string     `json:"reasoning,omitempty"`
	ToolCalls []toolCall `json:"tool_calls,omitempty"`
}

// turn takes a chat answer apart as it grows: reasoning, content, and at the end tool calls. Which text is a call is known
// only when it is whole; so a policy that may call tools says its content at the end, too.
type turn struct {
	speech render.Renderer
	tools  bool // the policy was told of some
	one    bool // of several calls only the first is told
	index  bool // calls are numbered, as in a stream
	callID func() string

	parsed             int // tokens, when it was taken apart last
	reasoning, content string
}

// parseEvery bounds the work on a long answer, which is taken apart as a whole each time: it grows by a 256th in between.
const parseEvery = 256

// say gives what is new of the answer with a piece of it, and why it is over.
func (t *turn) say(p piece) (said chatAnswer, finish *string) {
	n, over := len(p.out.Tokens), p.finish() != nil
	if p.from == 0 {
		said.Role = "assistant"
	}
	if !over && n-t.parsed <= n/parseEvery {
		return said, nil
	}
	t.parsed = n
	a := t.speech.Parse(p.out.Tokens, t.tools)
	bad := slices.ContainsFunc(a.Calls, func(c render.Call) bool { return c.Err != nil })
	if bad {
		a = t.speech.Parse(p.out.Tokens, false)
	}
	tail := p.answer.text.tail()
	open := "" // the end of a reasoning that goes on, which has no ends of lines around it
	if a.Content == "" {
		open = strings.TrimRight(tail, "\n")
	}
	said.Reasoning = grown(&t.reasoning, a.Reasoning, open)
	if t.tools && !over {
		return said, nil
	}
	if text := grown(&t.content, a.Content, tail); text != "" || over && t.content == "" && len(a.Calls) == 0 {
		said.Content = &text
	}
	finish = p.finish()
	if over && len(a.Calls) > 0 {
		said.ToolCalls = t.calls(a.Calls)
		if *finish == FinishStop {
			called := finishToolCalls
			finish = &called
		}
	}
	return said, finish
}

// message is the whole answer, the last piece of which is given.
func (t *turn) message(last chatAnswer) *render.Message {
	m := &render.Message{Role: "assistant", Content: t.content, Reasoning: t.reasoning}
	for _, c := range last.ToolCalls {
		m.ToolCalls = append(m.ToolCalls, render.ToolCall{ID: c.ID, Name: c.Function.Name, Arguments: c.Function.Arguments})
	}
	return m
}

// grown is what a text without the tail, which is not certain or not part of it, has more than was said. Text that turns out
// to be something else, as when an answer ends a reasoning that it never began, is not unsaid; what follows it is said.
func grown(said *string, text, tail string) string {
	text = strings.TrimSuffix(text, tail)
	if strings.HasPrefix(*said, text) {
		return ""
	}
	more, ok := strings.CutPrefix(text, *said)
	if !ok {
		more = text
	}
	*said = text
	return more
}

func (t *turn) calls(calls []render.Call) []toolCall {
	if t.one {
		calls = calls[:1]
	}
	out := make([]toolCall, len(calls))
	for i, c := range calls {
		out[i] = toolCall{ID: t.callID(), Type: "function", Function: functionCall{c.Name, c.Arguments}}
		if t.index {
			out[i].Index = &i
		}
	}
	return out
}
