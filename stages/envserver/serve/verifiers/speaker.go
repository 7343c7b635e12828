package verifiers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/try"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// A speaker says what the policy says, in one conversation.
type speaker interface {
	// hear takes messages that the policy has not seen yet. Those that say returns are how the policy sees them.
	hear(messages []env.Message) error
	// say asks the model. A modelError says what was wrong with it.
	say(ctx context.Context, call int) (spoken, error)
	// endpoint is the path that is asked.
	endpoint() string
}

// spoken is what the policy was shown since its last reply, and its reply.
type spoken struct {
	shown  []shown
	reply  env.Message
	think  string
	finish string // stop, length or tool_calls
	usage  *usage
	tokens *tokens // of the reply; nil where they are not known
	raw    raw     // what a server of chat completions says of them
}

// raw are the tokens that a server of chat completions was asked to tell of.
type raw struct {
	prompt, completion []int32
	logprobs           []float32
}

// shown is a message for the policy.
type shown struct {
	env.Message
	tokens *tokens
}

// tokens are those that a message adds; of a reply the first opening ones were not sampled.
type tokens struct {
	ids      []int32
	from, to int // ids[from:to] hold the content
	opening  int
	logprobs []float32 // of ids[opening:]
}

type usage struct{ prompt, completion int }

// modelError is a model call that failed.
type modelError struct {
	status int
	cause  error
	full   bool // the conversation has no room in the model
}

func (m *modelError) Error() string { return m.cause.Error() }

func (m *modelError) Unwrap() error { return m.cause }

// chat asks for text.
type chat struct {
	model    *try.Model
	tools    []env.Tool
	messages []env.Message
	unseen   int // of them
}

func (s *Server) newChat(p player, tools []env.Tool, session string) *chat {
	fields := map[string]any{"temperature": nil}
	if s.cfg.MaxTokens > 0 {
		fields["max_tokens"] = s.cfg.MaxTokens
	}
	for name, v := range p.sampling {
		switch name {
		case "model", "messages", "tools", "stream", "n":
		default:
			fields[name] = v
		}
	}
	header := p.access.header.Clone()
	header.Set("X-Session-Id", session)
	limits := s.cfg.Limits
	limits.Request, limits.Retries = p.timeout, p.retries
	return &chat{tools: tools, model: &try.Model{
		Base: p.base, Name: p.model, Header: header, Fields: fields, HTTP: s.http, Limits: limits,
		Warn: func(err error) { s.log.Warn("a model call failed and is tried again", "url", p.base, "error", err) },
	}}
}

func (c *chat) endpoint() string { return "/chat/completions" }

func (c *chat) hear(messages []env.Message) error {
	c.messages = append(c.messages, messages...)
	c.unseen += len(messages)
	return nil
}

func (c *chat) say(ctx context.Context, call int) (spoken, error) {
	a, err := c.model.Answer(ctx, c.messages, c.tools, call)
	if err != nil {
		status, said, full := try.Refused(err)
		switch {
		case status != 0:
			err = fmt.Errorf("upstream %d: %s", status, said)
		case errors.Is(err, context.DeadlineExceeded):
			status = 504
		default:
			status = 503
		}
		return spoken{}, &modelError{status, err, full}
	}
	if len(c.tools) == 0 {
		a.Message.ToolCalls = nil // it was told of none
	}
	s := spoken{reply: a.Message, think: a.Reasoning, finish: "stop", raw: chatTokens(a.Raw)}
	for _, m := range c.messages[len(c.messages)-c.unseen:] {
		s.shown = append(s.shown, shown{Message: m})
	}
	switch {
	case a.Cut:
		s.finish = inference.FinishLength
	case len(a.Message.ToolCalls) > 0:
		s.finish = "tool_calls"
	}
	if a.Counted {
		s.usage = &usage{a.Prompt, a.Completion}
	}
	c.messages, c.unseen = append(c.messages, a.Message), 0
	return s, nil
}

// talk asks for tokens.
type talk struct {
	renderer render.Renderer
	client   *inference.Client
	retries  int
	timeout  time.Duration
	request  inference.Request // all but the tokens
	tools    []render.Tool
	all      []int32 // tokens of the conversation so far
	answer   []int32 // the last one
	unseen   []env.Message
}

func (s *Server) newTalk(p player, tools []env.Tool) (*talk, error) {
	t := &talk{
		renderer: s.cfg.Renderer, retries: p.retries, timeout: p.timeout, client: inference.NewClient(strings.TrimSuffix(p.base, "/v1")),
	}
	t.client.Token = p.access.key
	// As a frozen policy, since that is one whose versions nobody tells.
	t.request = inference.Request{
		Policy: p.model, Temperature: 1, MaxTokens: s.cfg.MaxTokens, Seed: rand.Int64N(1 << 53), StopTokens: slices.Clone(t.renderer.Stop()),
	}
	if s.info.OneCall {
		t.request.StopTokens = append(t.request.StopTokens, t.renderer.CallStop()...)
	}
	for _, tool := range tools {
		t.tools = append(t.tools, render.Tool{Name: tool.Name, Description: tool.Description, Parameters: tool.Schema})
	}
	for name, v := range p.sampling {
		n, isNumber := number(v)
		switch {
		case name == "temperature" && isNumber:
			t.request.Temperature = n
		case name == "top_p" && isNumber:
			t.request.TopP = n
		case name == "max_tokens" && isNumber && n >= 1:
			t.request.MaxTokens = int(n)
		case name == "seed" && isNumber:
			t.request.Seed = int64(n)
		case neutral(name, v):
		default:
			return nil, invalid("sampling: %s = %v cannot be sampled with where tokens are trained on", name, v)
		}
	}
	return t, nil
}

// neutral reports whether a parameter changes nothing of what is sampled with.
func neutral(name string, v any) bool {
	n, isNumber := number(v)
	switch name {
	case "top_k":
		return isNumber && n <= 0
	case "min_p", "presence_penalty", "frequency_penalty", "min_tokens":
		return isNumber && n == 0
	case "repetition_penalty":
		return isNumber && n == 1
	case "return_token_ids", "logprobs", "top_logprobs", "skip_special_tokens", "cache_salt", "priority":
		return true
	}
	return false
}

func (t *talk) endpoint() string { return "/inference/v1/generate" }

func (t *talk) hear(messages []env.Message) error {
	t.unseen = append(t.unseen, messages...)
	return nil
}

func (t *talk) say(ctx context.Context, call int) (spoken, error) {
	var s spoken
	texts := make([]render.Message, len(t.unseen))
	for i, m := range t.unseen {
		text, err := m.Text()
		if err != nil {
			return s, err
		}
		texts[i] = render.Message{Role: string(m.Role), Content: text, ToolCallID: m.ToolCallID}
	}
	var rendered []render.Rendered
	var err error
	if t.answer == nil {
		rendered, err = t.renderer.Begin(texts, t.tools)
	} else {
		rendered, err = t.renderer.Extend(t.answer, texts)
	}
	if err != nil {
		return s, fmt.Errorf("render the conversation: %w", err)
	}
	all := t.all
	for i, r := range rendered {
		m := env.Message{Role: env.Role(r.Role), Content: r.Content}
		if at := i - (len(rendered) - len(t.unseen)); at >= 0 {
			m.ToolCallID = t.unseen[at].ToolCallID
		}
		s.shown = append(s.shown, shown{m, &tokens{ids: r.Tokens, from: r.From, to: r.To}})
		all = append(all, r.Tokens...)
	}
	opening := t.renderer.GenerationPrompt()
	all = append(all, opening...)
	t.request.Tokens = all
	done, err := t.generate(ctx)
	if err != nil {
		return s, err
	}
	t.request.Seed++
	said := t.renderer.Parse(done.Tokens, len(t.tools) > 0)
	s.reply, s.think, s.finish = env.Assistant(said.Content), said.Reasoning, done.FinishReason
	for k, c := range said.Calls {
		if c.Err != nil {
			s.reply.ToolCalls = nil // as text: the environment says what is wrong with it
			s.reply.Content = t.renderer.Parse(done.Tokens, false).Content
			break
		}
		s.reply.ToolCalls = append(s.reply.ToolCalls, env.ToolCall{ID: fmt.Sprintf("call_%d_%d", call, k), Name: c.Name, Arguments: c.Arguments})
	}
	if len(s.reply.ToolCalls) > 0 && s.finish == inference.FinishStop {
		s.finish = "tool_calls"
	}
	s.usage = &usage{len(all), len(done.Tokens)}
	n := len(opening)
	s.tokens = &tokens{ids: slices.Concat(opening, done.Tokens), opening: n, from: n + said.From, to: n + said.To, logprobs: done.Logprobs}
	t.all, t.answer, t.unseen = append(all, done.Tokens...), done.Tokens, nil
	return s, nil
}

// generate asks with tries.
func (t *talk) generate(ctx context.Context) (inference.Completion, error) {
	pause := backoff.NewExponentialBackOff()
	for tries := 0; ; tries++ {
		done, err := t.once(ctx)
		if err == nil && done.Prompt != nil && !slices.Equal(done.Prompt, t.request.Tokens) {
			err = errors.New("the model was shown other tokens than were asked for")
		}
		if err == nil {
			return done, nil
		}
		var refused *inference.Error
		status := 503
		if errors.As(err, &refused) && refused.Status != 0 {
			status = refused.Status
		}
		if tries >= t.retries || !inference.Retryable(err) || ctx.Err() != nil {
			return done, &modelError{status, err, refused != nil && refused.Code == inference.CodeTooLong}
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause.NextBackOff()):
		}
	}
}

func (t *talk) once(ctx context.Context) (inference.Completion, error) {
	if t.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, t.timeout)
		defer cancel()
	}
	return t.client.Generate(ctx, t.request)
}

// close lets go of the connections.
func (t *talk) close() { t.client.Close() }

// chatTokens reads the tokens in a reply of chat completions, where the server gave them (return_token_ids, logprobs).
func chatTokens(text json.RawMessage) (out raw) {
	var r struct {
		Prompt  []int32 `json:"prompt_token_ids"`
		Choices []struct {
			IDs      []int32 `json:"token_ids"`
			Logprobs struct {
				Content []struct{ Logprob float32 }
			}
		}
	}
	if json.Unmarshal(text, &r) != nil || len(r.Choices) == 0 {
		return raw{}
	}
	out.prompt, out.completion = r.Prompt, r.Choices[0].IDs
	for _, l := range r.Choices[0].Logprobs.Content {
		out.logprobs = append(out.logprobs, l.Logprob)
	}
	return out
}
