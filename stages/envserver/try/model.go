package try

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Model is a model behind a URL, for others who have rollouts played by one. It is safe for concurrent use.
type Model struct {
	// Base is the base of the API, such as https://example.com/v1.
	Base string
	Name string
	// Header goes with every request.
	Header http.Header
	// Fields are further ones of every request, over those that are made of the conversation; null leaves one out.
	Fields map[string]any
	HTTP   *http.Client
	// Limits: Request, Retries and Pause count here.
	Limits Limits
	// Warn hears of tries that failed and are repeated; nil for nobody.
	Warn func(error)
}

// Answer is what a model said.
type Answer struct {
	Message   env.Message
	Reasoning string
	// Cut says that it was cut at the limit of tokens.
	Cut bool
	// Counted says that the server counted the tokens of Prompt and Completion.
	Counted            bool
	Prompt, Completion int
	// Raw is the server's reply.
	Raw json.RawMessage
}

// Answer asks for what comes next in a conversation; call numbers the calls of a rollout.
func (m *Model) Answer(ctx context.Context, messages []env.Message, tools []env.Tool, call int) (Answer, error) {
	shown, err := sent(messages, false)
	if err != nil {
		return Answer{}, err
	}
	c := &client{
		base: strings.TrimRight(m.Base, "/"), http: m.HTTP, header: m.Header, retries: m.Limits.Retries, timeout: m.Limits.Request, pause: m.Limits.Pause, warn: m.Warn,
	}
	if c.pause <= 0 {
		c.pause = usualPause
	}
	if c.warn == nil {
		c.warn = func(error) {}
	}
	a, err := c.chat(ctx, chatRequest{Model: m.Name, Messages: shown, Tools: told(tools), fields: m.Fields}, call)
	said := Answer{Message: a.message, Reasoning: a.reasoning, Cut: a.cut, Raw: a.raw}
	if a.usage != nil {
		said.Counted, said.Prompt, said.Completion = true, a.usage.prompt, a.usage.completion
	}
	return said, err
}

// Refused is the status and the words of a server that refused to answer; status is 0 where err is something else. full says
// that the conversation has no room in the model.
func Refused(err error) (status int, said string, full bool) {
	var r *refusal
	if !errors.As(err, &r) {
		return 0, "", false
	}
	return r.status, r.said, r.tooLong()
}

// usualPause is before the first retry.
const usualPause = 500 * time.Millisecond

// MarshalJSON puts further fields over the others.
func (r chatRequest) MarshalJSON() ([]byte, error) {
	type plain chatRequest
	text, err := json.Marshal(plain(r))
	if err != nil || len(r.fields) == 0 {
		return text, err
	}
	var all map[string]json.RawMessage
	if err := json.Unmarshal(text, &all); err != nil {
		return nil, err
	}
	for name, v := range r.fields {
		if v == nil {
			delete(all, name)
			continue
		}
		if all[name], err = json.Marshal(v); err != nil {
			return nil, err
		}
	}
	return json.Marshal(all)
}
