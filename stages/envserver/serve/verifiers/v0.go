package verifiers

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prl-project/prl/stages/envserver/env"
)

// The wire of v0 (0.1.12 to 0.3.1): [id, payload], where "ping" asks for health and nothing at all cancels.

func (p *peer) requestV0(ctx context.Context, id string, payload []byte) {
	if string(payload) == "ping" {
		if err := p.send(id, "", success()); err != nil {
			_ = p.conn.Close()
		}
		return
	}
	if len(payload) == 0 {
		p.cancel(id)
		return
	}
	if err := p.runV0(ctx, id, payload); err != nil {
		if err := p.send(id, "", refusal(err)); err != nil {
			_ = p.conn.Close()
		}
	}
}

func (p *peer) runV0(ctx context.Context, id string, payload []byte) error {
	request, err := decoded(payload)
	if err != nil {
		return err
	}
	var inputs []any
	kind, _ := request["request_type"].(string)
	switch kind {
	case "run_rollout":
		inputs = []any{request["input"]}
	case "run_group":
		inputs, _ = request["group_inputs"].([]any)
		if len(inputs) < 1 || len(inputs) > mostGroup {
			return invalid("group_inputs: want 1 to %d", mostGroup)
		}
	case "health":
		return p.send(id, "", success())
	default:
		return original("Unknown request type: " + kind)
	}
	who, err := p.playerOfV0(request)
	if err != nil {
		return err
	}
	var rollouts []*rollout
	for _, v := range inputs {
		t, err := p.taskOfV0(v)
		if err != nil {
			return invalid("input: %v", err)
		}
		rollouts = append(rollouts, newRollout(t, who))
	}
	columns, _ := request["state_columns"].([]any)
	p.warn(who)
	return p.begin(ctx, id, func(ctx context.Context) error {
		if err := p.group(ctx, rollouts, kind == "run_group"); err != nil {
			return p.send(id, "", refusal(err))
		}
		outputs := []any{}
		for _, r := range rollouts {
			outputs = append(outputs, p.outputOf(r, columns))
		}
		v := success()
		if kind == "run_rollout" {
			v["output"] = outputs[0]
		} else {
			v["outputs"] = outputs
		}
		return p.send(id, "", v)
	})
}

// taskOfV0 reads a row: what says which task it is stands in info, a map or its JSON, or is the example's number.
func (p *peer) taskOfV0(v any) (task, error) {
	row, ok := v.(object)
	if !ok {
		return task{}, fmt.Errorf("want a map")
	}
	info, _ := row["info"].(object)
	if text, ok := row["info"].(string); ok && json.Valid([]byte(text)) {
		info, _ = objectOf([]byte(text))
	}
	number, err := whole(row["example_id"])
	if err != nil {
		number = nil
	}
	t, err := p.taskOf(info, number)
	t.data = row
	return t, err
}

// outputOf is a rollout as v0 has it, with the columns of the state that are asked for.
func (p *peer) outputOf(r *rollout, columns []any) object {
	reward := 0.0 // v0 has no null: a rollout that failed is told by its error
	if total := r.rewards.Total(); total != nil && r.ok {
		reward = *total
	}
	metrics := object{}
	for name, v := range r.metrics {
		metrics[name] = v
	}
	for name, c := range r.rewards {
		if c.Value != nil {
			metrics[name] = *c.Value
		}
	}
	input, output := r.counts()
	v := object{
		"example_id": r.task.data["example_id"], "prompt": chatOf(r.messages[:r.prompt]), "completion": chatOf(r.messages[r.prompt:]),
		"reward": reward, "metrics": metrics, "info": p.about(r), "error": nil, "is_completed": r.completed, "is_truncated": r.truncated,
		"stop_condition": r.stop, "tool_defs": toolsOf(r.tools),
		"timing": object{
			"start_time": unix(r.timing.start.start), "setup": r.timing.setup.object(), "generation": r.timing.agent.object(),
			"scoring": r.timing.scoring.object(),
		},
		"token_usage": object{"input_tokens": float64(input), "output_tokens": float64(output)},
	}
	if answer, ok := r.task.data["answer"]; ok {
		v["answer"] = answer
	}
	if len(r.failures) > 0 {
		f := r.failures[len(r.failures)-1]
		text := f.kind + ": " + f.message
		v["error"] = object{"error": f.kind, "error_chain_repr": text, "error_chain_str": text}
	}
	for _, name := range columns {
		if name == "trajectory" {
			v["trajectory"] = r.trajectory()
		}
	}
	return v
}

// trajectory are the turns, each with all that the policy saw.
func (r *rollout) trajectory() []any {
	steps := []any{}
	for i, s := range r.steps {
		at := r.replies[i]
		truncated := s.finish == "length"
		steps = append(steps, object{
			"prompt": chatOf(r.messages[:at]), "completion": chatOf(r.messages[at : at+1]), "tokens": r.tokensOf(i), "reward": nil, "advantage": nil,
			"is_truncated": truncated, "trajectory_id": r.id, "extras": object{},
			"response": object{"finish_reason": s.finish},
		})
	}
	return steps
}

// tokensOf are the tokens of a turn; nil where they are not known.
func (r *rollout) tokensOf(turn int) any {
	s := r.steps[turn]
	prompt, completion, logprobs := s.raw.prompt, s.raw.completion, s.raw.logprobs
	if s.tokens != nil {
		prompt = nil
		for _, before := range r.steps[:turn+1] {
			for _, m := range before.shown {
				prompt = append(prompt, m.tokens.ids...)
			}
			t := before.tokens
			prompt = append(prompt, t.ids[:t.opening]...)
			completion, logprobs = t.ids[t.opening:], t.logprobs
			if before.tokens != s.tokens {
				prompt = append(prompt, completion...)
			}
		}
	}
	if len(completion) == 0 || len(prompt) == 0 || len(logprobs) != len(completion) {
		return nil
	}
	sampled, seen := make([]int, len(completion)), make([]int, len(prompt))
	for i := range sampled {
		sampled[i] = 1
	}
	return object{
		"prompt_ids": prompt, "prompt_mask": seen, "completion_ids": completion, "completion_mask": sampled, "completion_logprobs": logprobs,
		"overlong_prompt": false, "is_truncated": s.finish == "length", "routed_experts": nil,
	}
}

func chatOf(messages []env.Message) []any {
	all := []any{}
	for _, m := range messages {
		all = append(all, messageOf(m, ""))
	}
	return all
}
