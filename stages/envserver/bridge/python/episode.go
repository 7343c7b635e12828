package python

import (
	"context"
	"encoding/json"

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

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message { return e.prompt }

// Tools implements [env.ToolSource].
func (e *episode) Tools() []env.Tool { return e.tools }

// CallTool implements [env.ToolSource].
func (e *episode) CallTool(ctx context.Context, name string, args json.RawMessage) (env.ToolResult, error) {
	e.calls++
	a, err := e.in.ask(ctx, request{Op: "call", Episode: e.id, Tool: name, Arguments: string(args)})
	if err != nil {
		return env.ToolResult{}, err
	}
	e.done = a.Done
	if a.Refused != nil {
		e.refused++
		return env.ToolResult{}, env.Refuse("%s", *a.Refused)
	}
	return env.ToolResult{Text: a.Text}, nil
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
