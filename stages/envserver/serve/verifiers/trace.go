package verifiers

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// A trace is a rollout as verifiers 0.4.0 and 0.2.1 have it. Models there refuse fields that they do not know, so each wire has
// its own.

// shape says how a wire has what differs.
type shape struct {
	version int    // of the schema of a trace
	agent   string // what the span of the policy's turns is called
	links   bool   // nodes have semantic_parents
}

var (
	shape040 = shape{1, "agent", true}
	shape021 = shape{2, "generation", false}
)

// header is what is known of a trace from the start.
func (s *Server) header(r *rollout, f shape) object {
	task := object{"type": "Task", "data": r.task.data}
	h := object{"version": f.version, "id": r.id, "task": task, "verifiers": object{"version": "prl", "commit": nil}}
	if f == shape040 {
		sum := sha256.Sum256(encoded(r.task.data))
		task["hash"] = hex.EncodeToString(sum[:])
		task["key"] = task["hash"]
	}
	return h
}

// state is what changes of a trace beside its lists.
func (s *Server) state(r *rollout, f shape) object {
	metrics := object{}
	for name, v := range r.metrics {
		metrics[name] = v
	}
	var stop any
	if r.stop != "" {
		stop = r.stop
	}
	agent := object{"model": r.player.model, "sampling": r.player.sampling}
	v := object{
		"rewards": rewards(r.rewards, f), "metrics": metrics, "info": s.about(r), "is_completed": r.completed, "stop_condition": stop,
		"timing": r.timing.object(f),
	}
	if f == shape040 {
		agent = object{"config": agent, "name": "agent", "trainable": true}
		input, output := r.counts()
		v["tools"], v["ok"], v["is_timeout"] = toolsOf(r.tools), r.ok, r.timeout
		v["num_input_tokens"], v["num_output_tokens"], v["num_total_tokens"] = input, output, input+output
	}
	v["agent"] = agent
	return v
}

// about is what this server tells of the episode beside.
func (s *Server) about(r *rollout) object {
	c := r.task.chosen
	return object{"prl": object{
		"env": s.info.Name, "version": s.info.Version, "split": string(c.Split), "index": c.Index, "seed": c.Seed, "truncated": r.truncated,
	}}
}

// rewards have null where a component does not apply; in 0.2.1 these are left out, as it has no nulls and no weights.
func rewards(all env.Rewards, f shape) object {
	out := object{}
	for name, r := range all {
		switch {
		case f == shape021 && r.Value != nil:
			out[name] = *r.Value * r.Weight
		case f == shape021:
		case r.Value == nil:
			out[name] = nil
		default:
			out[name] = object{"score": *r.Value, "weight": r.Weight}
		}
	}
	return out
}

// counts are the tokens that went into the model and that came out of it, each once.
func (r *rollout) counts() (input, output int) {
	before := 0
	for _, c := range r.calls {
		if c.usage != nil {
			input += max(0, c.usage.prompt-before)
			output += c.usage.completion
			before = c.usage.prompt + c.usage.completion
		}
	}
	return input, output
}

func nodeOf(n node, f shape) object {
	v := object{"parent": nil, "message": messageOf(n.message, n.think), "sampled": n.sampled, "timestamp": unix(n.at)}
	if n.parent >= 0 {
		v["parent"] = n.parent
	}
	if f.links {
		v["semantic_parents"] = []any{}
	}
	v["token_ids"], v["mask"], v["is_content"], v["logprobs"] = []any{}, []any{}, []any{}, []any{}
	if t := n.tokens; t != nil {
		mask, content := make([]bool, len(t.ids)), make([]bool, len(t.ids))
		for i := range t.ids {
			mask[i], content[i] = n.sampled && i >= t.opening, i >= t.from && i < t.to
		}
		v["token_ids"], v["mask"], v["is_content"] = t.ids, mask, content
		if n.sampled {
			v["logprobs"] = t.logprobs
		}
	}
	return v
}

func callOf(r *rollout, c call) object {
	v := object{
		"node": nil, "model": r.player.model, "sampling": r.player.sampling, "endpoint": r.endpoint, "finish_reason": nil, "usage": nil,
		"time": c.span.object(), "error": nil,
	}
	if c.node >= 0 {
		v["node"], v["finish_reason"] = c.node, c.finish
	}
	if c.usage != nil {
		v["usage"] = object{"prompt_tokens": c.usage.prompt, "completion_tokens": c.usage.completion}
	}
	if c.err != nil {
		v["error"] = c.err.object()
	}
	return v
}

func (f failure) object() object {
	v := object{"type": f.kind, "message": f.message, "status_code": nil, "traceback": nil}
	if f.status != 0 {
		v["status_code"] = f.status
	}
	if f.traceback != "" {
		v["traceback"] = f.traceback
	}
	return v
}

// messageOf is a message as the wire has it.
func messageOf(m env.Message, think string) object {
	v := object{"role": string(m.Role), "content": contentOf(m)}
	switch m.Role {
	case env.RoleTool:
		v["tool_call_id"] = m.ToolCallID
	case env.RoleAssistant:
		v["content"] = m.Content // text alone
		if m.Content == "" && len(m.ToolCalls) > 0 {
			v["content"] = nil
		}
		if think != "" {
			v["reasoning_content"] = think
		}
		var calls []any
		for _, c := range m.ToolCalls {
			calls = append(calls, object{"id": c.ID, "name": c.Name, "arguments": c.Arguments})
		}
		if calls != nil {
			v["tool_calls"] = calls
		}
	}
	return v
}

func contentOf(m env.Message) any {
	if len(m.Images) == 0 {
		return m.Content
	}
	var parts []any
	for _, i := range m.Images {
		data := "data:" + i.MIME + ";base64," + base64.StdEncoding.EncodeToString(i.Data)
		parts = append(parts, object{"type": "image_url", "image_url": object{"url": data}})
	}
	return append(parts, object{"type": "text", "text": m.Content})
}

func toolsOf(tools []env.Tool) []any {
	all := []any{}
	for _, t := range tools {
		parameters, err := objectOf(t.Schema)
		if err != nil {
			parameters = object{}
		}
		all = append(all, object{"name": t.Name, "description": t.Description, "parameters": parameters})
	}
	return all
}

func unix(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixNano()) / 1e9
}

func (s span) object() object { return object{"start": unix(s.start), "end": unix(s.end)} }

func (t timing) object(f shape) object {
	return object{"start": unix(t.start.start), "setup": t.setup.object(), f.agent: t.agent.object(), "scoring": t.scoring.object()}
}
