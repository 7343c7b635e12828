package openenv

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/prl-project/prl/stages/envserver/bridge/rows"
	"github.com/prl-project/prl/stages/envserver/env"
)

// mostMetrics is how many numbers of metadata and state are recorded.
const mostMetrics = 64

// episode is one session from a reset to the next.
type episode struct {
	cfg   Config
	how   actions
	pool  *pool
	in    *session
	first string // what reset observed
	tools []env.Tool

	prompt   []env.Message
	steps    int
	refused  int // of these, or of what was to become one
	last     *float64
	sum      float64
	metadata map[string]json.RawMessage
	done     bool
	broken   bool // the session is not good for another episode
	closed   bool
}

// seeds is how many seeds reset is given: those that every generator of random numbers in Python takes.
const seeds = 1 << 31

// resetData is what reset gets: the fields of the task except the prompt; the rollout's seed unless the task has one.
func resetData(task json.RawMessage, seed int64) (map[string]json.RawMessage, error) {
	var data map[string]json.RawMessage
	if err := json.Unmarshal(task, &data); err != nil || data == nil {
		return nil, errors.New("not a JSON object")
	}
	delete(data, "prompt")
	if _, ok := data["seed"]; !ok {
		data["seed"] = fmt.Appendf(nil, "%d", uint64(seed)%seeds)
	}
	if _, ok := data["episode_id"]; !ok {
		data["episode_id"] = json.RawMessage(`"` + rand.Text() + `"`)
	}
	return data, nil
}

// begin resets the environment of a session.
func (e *episode) begin(ctx context.Context, s *session, data map[string]json.RawMessage) error {
	a, err := s.ask(ctx, "reset", data)
	if err != nil {
		return err
	}
	r, err := observed(a)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	if e.first, err = e.cfg.observe(r.Observation); err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	e.done, e.metadata = r.Done, r.Metadata
	switch e.how.how {
	case asTools:
		e.tools, err = listTools(ctx, s, e.how)
	case asStep:
		e.tools = []env.Tool{e.how.step}
	}
	return err
}

// prompt is what the policy sees first: the option system, the task's messages and, in the last, what reset observed.
func (c Config) prompt(shown []env.Message, first string) ([]env.Message, error) {
	if len(shown) > 0 && first != "" {
		first = "\n\n" + first
	}
	said := &first
	if first == "" {
		said = nil
	}
	messages, err := rows.Observed(shown, said)
	if err == nil && c.System != "" {
		messages = slices.Insert(messages, 0, env.System(c.System))
	}
	return messages, err
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message { return e.prompt }

// Tools implements [env.ToolSource].
func (e *episode) Tools() []env.Tool { return e.tools }

// Done implements [env.Finisher].
func (e *episode) Done() bool { return e.done }

// Reply implements [env.Episode]: the text is an action, or, where there are tools, the end.
func (e *episode) Reply(ctx context.Context, reply env.Message) (env.Turn, error) {
	if e.done || e.how.how != asText {
		return env.Turn{Done: true}, nil
	}
	text, err := e.act(ctx, map[string]string{e.how.field: reply.Content})
	var no *env.Refusal
	switch {
	case errors.As(err, &no):
		text = "error: " + no.Message
	case err != nil:
		return env.Turn{}, err
	}
	turn := env.Turn{Done: e.done}
	if text != "" || !e.done {
		turn.Messages = []env.Message{env.User(text)}
	}
	return turn, nil
}

// CallTool implements [env.ToolSource].
func (e *episode) CallTool(ctx context.Context, name string, args json.RawMessage) (env.ToolResult, error) {
	if e.done {
		return env.ToolResult{}, env.Refuse("the episode is over")
	}
	switch {
	case e.how.how == asStep:
		text, err := e.act(ctx, args)
		return env.ToolResult{Text: text}, err
	case e.how.calls:
		r, err := e.step(ctx, map[string]any{"type": "call_tool", "tool_name": name, "arguments": args})
		if err != nil {
			return env.ToolResult{}, err
		}
		return e.answer(r.Observation)
	}
	return e.rpc(ctx, name, args)
}

// act takes a step and returns what the policy sees of the observation.
func (e *episode) act(ctx context.Context, action any) (string, error) {
	r, err := e.step(ctx, action)
	if err != nil {
		return "", err
	}
	return e.cfg.observe(r.Observation)
}

// step takes a step. A refusal is for the policy.
func (e *episode) step(ctx context.Context, action any) (result, error) {
	a, err := e.in.ask(ctx, "step", action)
	var said *refusal
	switch {
	case errors.As(err, &said) && (said.Code == codeValidation || said.Code == codeExecution && e.cfg.Raises == "policy"):
		e.refused++
		return result{}, env.Refuse("%s", said.told())
	case errors.As(err, &said) && said.Code == codeExecution:
		e.broken = true
		return result{}, fmt.Errorf(`step: %w; set raises = "policy" if the environment raises for what the policy does wrong`, err)
	case err != nil:
		e.broken = true
		return result{}, err
	}
	r, err := observed(a)
	if err != nil {
		e.broken = true
		return r, fmt.Errorf("step: %w", err)
	}
	e.steps++
	e.done = r.Done
	if r.Metadata != nil {
		e.metadata = r.Metadata
	}
	if v := r.Reward.v; v != nil {
		e.sum += *v
		e.last = v
	}
	return r, nil
}

// answer is what an observation says of a call.
func (e *episode) answer(observation json.RawMessage) (env.ToolResult, error) {
	var c called
	if err := json.Unmarshal(observation, &c); err != nil {
		return env.ToolResult{}, fmt.Errorf("the observation %.200s: %w", observation, err)
	}
	if c.Error != nil {
		if c.Error.Type == "transport_error" {
			e.broken = true
			return env.ToolResult{}, fmt.Errorf("the server has lost its tools: %s", short(c.Error.Message))
		}
		e.refused++
		return env.ToolResult{}, env.Refuse("%s", short(c.Error.Message))
	}
	if len(c.Result) == 0 { // an environment with an observation of its own
		text, err := e.cfg.observe(observation)
		return env.ToolResult{Text: text}, err
	}
	r, err := shown(c.Result, e.cfg.Alt)
	if err != nil {
		e.refused++
	}
	return r, err
}

// rpc calls a tool by JSON-RPC, past the environment's step: there is no reward, and it ends nothing.
func (e *episode) rpc(ctx context.Context, name string, args json.RawMessage) (env.ToolResult, error) {
	text, err := e.in.rpc(ctx, "tools/call", map[string]any{"name": name, "arguments": args})
	var said *rpcError
	switch {
	case errors.As(err, &said) && said.Code != methodNotFound:
		e.refused++
		return env.ToolResult{}, env.Refuse("%s", short(said.Message))
	case err != nil:
		e.broken = true
		return env.ToolResult{}, err
	}
	e.steps++
	var observation struct {
		Tool *string `json:"tool_name"`
	}
	if json.Unmarshal(text, &observation) == nil && observation.Tool != nil {
		return e.answer(text)
	}
	r, err := shown(text, e.cfg.Alt)
	if err != nil {
		e.refused++
	}
	return r, err
}

// Score implements [env.Episode]. A reward that no step has given does not apply.
func (e *episode) Score(ctx context.Context) (env.Score, error) {
	reward := env.NotApplicable(1)
	if e.last != nil {
		reward = env.Value(*e.last)
		if e.cfg.Reward == "sum" {
			reward = env.Value(e.sum)
		}
	}
	s := env.Score{Rewards: env.Rewards{"reward": reward}, Metrics: map[string]float64{}}
	numbers(e.metadata, s.Metrics)
	if e.cfg.State {
		a, err := e.in.ask(ctx, "state", nil)
		if err != nil {
			e.broken = true
			return env.Score{}, err
		}
		var state map[string]json.RawMessage
		if err := json.Unmarshal(a.Data, &state); a.Type != "state" || err != nil {
			return env.Score{}, fmt.Errorf("the server answered %.40q with %.200s, want the state", a.Type, a.Data)
		}
		numbers(state, s.Metrics)
	}
	s.Metrics["steps"], s.Metrics["errors"] = float64(e.steps), float64(e.refused)
	return s, nil
}

// numbers adds those fields that are numbers, or true or false, to metrics.
func numbers(fields map[string]json.RawMessage, metrics map[string]float64) {
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		var n number
		if len(metrics) < mostMetrics && len(name) <= 64 && json.Unmarshal(fields[name], &n) == nil && n.v != nil {
			metrics[name] = *n.v
		}
	}
}

// Close implements [io.Closer]: the session is free for another episode, or ends. It does not wait for that.
func (e *episode) Close() error {
	if !e.closed {
		e.closed = true
		e.pool.release(e.in, !e.broken)
	}
	return nil
}
