package verifiers

import (
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// limits are stop conditions by which a framework ends what the policy does.
var limits = map[string]bool{
	"max_turns": true, "max_turns_reached": true, "max_input_tokens": true, "max_output_tokens": true, "max_total_tokens": true,
	"context_length": true, "compaction_failed": true, "harness_timeout": true, "agent_timeout": true, "prompt_too_long": true,
}

// finished is the outcome of a trace of wires 0.4.0 and 0.2.1.
func finished(t object, rewards env.Rewards, info object) env.Outcome {
	out := env.Outcome{Score: env.Score{Rewards: rewards, Metrics: figures(objectOf(t, "metrics")), Stop: textOf(t, "stop_condition")}, Info: bounded(info)}
	out.Truncated = limits[out.Score.Stop]
	calls := listOf(t, "calls")
	for i := len(calls) - 1; i >= 0; i-- {
		if c, _ := calls[i].(object); c != nil && c["error"] == nil {
			out.Truncated = out.Truncated || textOf(c, "finish_reason") == "length"
			break
		}
	}
	for _, v := range listOf(t, "nodes") {
		node, _ := v.(object)
		if m, ok := message(objectOf(node, "message")); ok {
			out.Messages = append(out.Messages, m)
		}
		if ids := marked(listOf(node, "token_ids"), listOf(node, "mask")); flagOf(node, "sampled") && len(ids) > 0 {
			out.Replies = append(out.Replies, ids)
		}
	}
	return out
}

// failed makes an error of the last that a server has recorded of a rollout. A context that is full, which the endpoint says by
// an error, is the policy's doing and no failure; such a rollout was not scored.
func failed(recorded []any, played []object, info object) (env.Outcome, error) {
	if len(recorded) == 0 {
		return env.Outcome{}, errors.New("the rollout failed, and the server does not say why: see the environment's log")
	}
	last, _ := recorded[len(recorded)-1].(object)
	kind, message := textOf(last, "type"), textOf(last, "message")
	if full(message) && len(played) == 1 {
		unscored, err := weighed(nulls(objectOf(played[0], "rewards")))
		out := finished(played[0], unscored, info)
		out.Truncated, out.Score.Stop = true, "context_length"
		return out, err
	}
	return env.Outcome{}, &Error{Message: kind + ": " + message, Printed: textOf(last, "traceback")}
}

// full says that a message is, or quotes, the endpoint's answer to a conversation that is over its limits.
func full(message string) bool { return strings.Contains(message, "context_length_exceeded") }

func nulls(rewards object) object {
	none := object{}
	for name := range rewards {
		none[name] = nil
	}
	return none
}

// figures are the metrics that have a value. A server may have any; those that are no numbers are left out, and are in the info.
func figures(said object) map[string]float64 {
	metrics := map[string]float64{}
	for name, v := range said {
		if n, ok := numberOf(v); ok && n != nil {
			metrics[name] = *n
		}
	}
	return metrics
}

// marked are the token ids whose mask is set; nil if they do not fit.
func marked(ids, mask []any) (sampled []int32) {
	if len(ids) != len(mask) {
		return nil
	}
	for i := range ids {
		id, ok := numberOf(ids[i])
		set, _ := numberOf(mask[i])
		switch {
		case !ok || id == nil:
			return nil
		case set != nil && *set != 0:
			sampled = append(sampled, int32(*id))
		}
	}
	return sampled
}

// message reads a message of a conversation: its text, without what else it shows.
func message(said object) (m env.Message, ok bool) {
	m = env.Message{Role: env.Role(textOf(said, "role")), Content: textOf(said, "content"), ToolCallID: textOf(said, "tool_call_id")}
	for _, v := range listOf(said, "content") {
		part, _ := v.(object)
		m.Content += textOf(part, "text")
	}
	for _, v := range listOf(said, "tool_calls") {
		call, _ := v.(object)
		if f := objectOf(call, "function"); f != nil {
			call = object{"id": call["id"], "name": f["name"], "arguments": f["arguments"]}
		}
		m.ToolCalls = append(m.ToolCalls, env.ToolCall{ID: textOf(call, "id"), Name: textOf(call, "name"), Arguments: textOf(call, "arguments")})
	}
	return m, m.Role != ""
}

// single is a rollout of wire 0.2.1: one reply with the whole trace.
type single struct{ said object }

func (s *single) add(said object, _ bool) error {
	s.said = said
	return refused(said)
}

func (s *single) outcome() (env.Outcome, error) {
	t := objectOf(s.said, "trace")
	if t == nil {
		return env.Outcome{}, errors.New("the reply has no trace")
	}
	info := envelope(wire021, without(s.said, "trace", "success", "error"), []object{t})
	if recorded := listOf(t, "errors"); len(recorded) > 0 {
		return failed(recorded, []object{t}, info)
	}
	rewards := env.Rewards{} // weighted by the server
	for name, v := range objectOf(t, "rewards") {
		n, ok := numberOf(v)
		if !ok {
			return env.Outcome{}, fmt.Errorf("reward %q is %.100s", name, toJSON(v))
		}
		rewards[name] = env.Reward{Value: n, Weight: 1}
	}
	return finished(t, rewards, info), nil
}

// output is a rollout of wire v0: one reply with the state that it ended in.
type output struct{ said object }

func (o *output) add(said object, _ bool) error {
	o.said = said
	return refused(said)
}

func (o *output) outcome() (env.Outcome, error) {
	out := objectOf(o.said, "output")
	if out == nil {
		return env.Outcome{}, errors.New("the reply has no output")
	}
	reward, ok := numberOf(out["reward"])
	if !ok {
		return env.Outcome{}, fmt.Errorf("the reward is %.100s", toJSON(out["reward"]))
	}
	metrics := objectOf(out, "metrics")
	rest := without(out, "prompt", "completion", "trajectory", "tool_defs", "answer", "info")
	maps.DeleteFunc(rest, func(field string, _ any) bool { _, flat := metrics[field]; return flat && field != "reward" })
	outcome := env.Outcome{
		Score: env.Score{
			Rewards: env.Rewards{"reward": {Value: reward, Weight: 1}}, Metrics: figures(metrics), Stop: textOf(out, "stop_condition"),
		},
		Truncated: flagOf(out, "is_truncated"), Info: bounded(object{"wire": wireV0.name, "output": rest}),
	}
	for _, field := range []string{"prompt", "completion"} {
		for _, v := range listOf(out, field) {
			said, _ := v.(object)
			if m, ok := message(said); ok {
				outcome.Messages = append(outcome.Messages, m)
			}
		}
	}
	for _, v := range listOf(out, "trajectory") {
		step, _ := v.(object)
		tokens := objectOf(step, "tokens")
		if ids := marked(listOf(tokens, "completion_ids"), listOf(tokens, "completion_mask")); len(ids) > 0 {
			outcome.Replies = append(outcome.Replies, ids)
		}
	}
	if e := objectOf(out, "error"); e != nil {
		if textOf(e, "error") != "EmptyModelResponseError" {
			return env.Outcome{}, &Error{Message: textOf(e, "error") + ": " + textOf(e, "error_chain_repr"), Printed: textOf(e, "error_chain_str")}
		}
		// The policy said nothing: its own doing. It was not scored.
		outcome.Score.Rewards["reward"] = env.NotApplicable(1)
		outcome.Truncated, outcome.Score.Stop = true, "empty_reply"
	}
	return outcome, nil
}
