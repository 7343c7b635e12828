package verifiers

import (
	"encoding/json"
	"maps"
)

// mostInfo is what is kept of a server's words on a rollout, in bytes; a trace has no room for more than a MiB.
const mostInfo = 512 << 10

// envelope is what is kept of an episode: all that the trace does not have by itself, fields that this bridge does not know
// included. Messages, tokens and the task are left out, and so is the client, in which the endpoint's secret address stands.
func envelope(w *wire, head object, traces []object) object {
	var kept []any
	for _, t := range traces {
		t = without(t, "pending", "tools", "state")
		if task := objectOf(t, "task"); task != nil {
			t["task"] = without(task, "data")
		}
		if agent := objectOf(t, "agent"); agent != nil {
			agent = without(agent)
			if config := objectOf(agent, "config"); config != nil {
				agent["config"] = without(config, "client")
			}
			t["agent"] = agent
		}
		var nodes []any
		for _, v := range listOf(t, "nodes") {
			node, _ := v.(object)
			nodes = append(nodes, without(node, "message", "token_ids", "renderer_token_ids", "mask", "is_content", "logprobs",
				"routed_experts", "sampling_mask", "kept_tokens", "multi_modal_data", "tools"))
		}
		t["nodes"] = nodes
		kept = append(kept, t)
	}
	head = without(head, "traces")
	if task := objectOf(head, "task"); task != nil {
		head["task"] = without(task, "data")
	}
	return object{"wire": w.name, "episode": head, "traces": kept}
}

// without is a copy of an object that lacks some fields, and those that are null.
func without(o object, fields ...string) object {
	o = maps.Clone(o)
	for _, f := range fields {
		delete(o, f)
	}
	maps.DeleteFunc(o, func(_ string, v any) bool { return v == nil })
	return o
}

// bounded writes the info, and what is too long for a trace without the lists in it.
func bounded(info object) json.RawMessage {
	text := toJSON(info)
	if len(text) <= mostInfo {
		return text
	}
	text = toJSON(withoutLists(info))
	if len(text) <= mostInfo {
		return text
	}
	return toJSON(object{"wire": info["wire"], "cut": true})
}

func withoutLists(o object) object {
	short := object{"cut": true}
	for field, v := range o {
		switch v := v.(type) {
		case object:
			short[field] = withoutLists(v)
		case []any:
			if field == "traces" {
				var traces []any
				for _, t := range v {
					t, _ := t.(object)
					traces = append(traces, withoutLists(t))
				}
				short[field] = traces
			}
		default:
			short[field] = v
		}
	}
	return short
}
