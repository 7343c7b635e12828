package python

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/prl-project/prl/stages/envserver/env"
)

// episode is one instance of the class, from its reset to its reward.
type episode struct {
	cfg     Config
	tools   []env.Tool
	in      *process
	id      int64
	prompt  []env.Message
	calls   int
	refused int // of these, by the class
	done    bool
	closed  bool
}

// prompt reads the messages of a task's field "prompt"; none if it has no such field.
func prompt(task json.RawMessage) ([]env.Message, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(task, &fields); err != nil || fields == nil {
		return nil, errors.New("not a JSON object")
	}
	said, ok := fields["prompt"]
	if !ok || string(said) == "null" {
		return nil, nil
	}
	var text string
	if json.Unmarshal(said, &text) == nil {
		return []env.Message{env.User(text)}, nil
	}
	var messages []env.Message
	if err := json.Unmarshal(said, &messages); err != nil || len(messages) == 0 {
		return nil, errors.New(`field "prompt": want a text, or messages with role and content`)
	}
	for _, m := range messages {
		switch m.Role {
		case env.RoleSystem, env.RoleUser, env.RoleAssistant:
		default:
			return nil, fmt.Errorf(`field "prompt": a message of role %q`, m.Role)
		}
	}
	return messages, nil
}

// observed appends what reset said to the last message, which is the user's.
func observed(messages []env.Message, said *string) ([]env.Message, error) {
	last := len(messages) - 1
	switch {
	case last < 0 && (said == nil || *said == ""):
		return nil, errors.New(`the task has no field "prompt", and reset returned nothing`)
	case last < 0:
		return []env.Message{env.User(*said)}, nil
	case said == nil:
	case messages[last].Role != env.RoleUser:
		return nil, fmt.Errorf(`reset returned text for the last message of "prompt", which is of role %q, not user`, messages[last].Role)
	default:
		messages[last].Content += *said
	}
	return messages, nil
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message { return e.prompt }

// Tools implements [env.ToolSource].
func (e *episode) Tools() []env.Tool { return e.tools }

// CallTool implements [env.ToolSource].
func (e *episode) CallTool(ctx context.Context, name string, args json.RawMessage) (string, error) {
	e.calls++
	a, err := e.in.ask(ctx, request{Op: "call", Episode: e.id, Tool: name, Arguments: string(args)})
	if err != nil {
		return "", err
	}
	e.done = a.Done
	if a.Refused != nil {
		e.refused++
		return "", env.Refuse("%s", *a.Refused)
	}
	return a.Text, nil
}

// Done implements [env.Finisher].
func (e *episode) Done() bool { return e.done }

// Reply implements [env.Episode]: a reply without a call is the last.
func (e *episode) Reply(context.Context, env.Message) (env.Turn, error) {
	return env.Turn{Done: true}, nil
}

// Score implements [env.Episode].
func (e *episode) Score(ctx context.Context) (env.Score, error) {
	a, err := e.in.ask(ctx, request{Op: "score", Episode: e.id})
	if err != nil {
		return env.Score{}, err
	}
	s := env.Score{
		Rewards: env.Rewards{},
		Metrics: map[string]float64{"calls": float64(e.calls), "tool_errors": float64(e.refused)},
	}
	for name, v := range a.Rewards {
		weight, ok := e.cfg.Weights[name]
		if !ok {
			weight = 1
		}
		s.Rewards[name] = env.Reward{Value: v, Weight: weight}
	}
	return s, nil
}

// Close implements [io.Closer]: the instance is free for another episode. It does not wait for that.
func (e *episode) Close() error {
	if !e.closed {
		e.closed = true
		e.in.leave(e.id)
	}
	return nil
}
