package verifiers

import (
	"bytes"

	wire "github.com/prl-project/prl/stages/envserver/bridge/verifiers"
)

// stream sends a rollout while it grows, as deltas of wire 0.4.0: what each adds to what was sent before.
type stream struct {
	server *Server
	send   func(delta object) error
	opened bool
	nodes  int
	calls  int
	errors int
	state  map[string][]byte
	err    error // of the first that could not be sent
}

// flush sends what is new.
func (d *stream) flush(r *rollout) {
	if d.err != nil {
		return
	}
	delta := object{"trace": r.id}
	if !d.opened {
		delta["open"] = d.server.header(r, shape040)
	}
	more := func(field string, sent, n int, item func(i int) object) {
		var items []any
		for i := sent; i < n; i++ {
			items = append(items, item(i))
		}
		if items != nil {
			delta[field] = items
		}
	}
	more("nodes", d.nodes, len(r.nodes), func(i int) object {
		v := nodeOf(r.nodes[i], shape040)
		if i == 0 && len(r.tools) > 0 {
			v["tools"] = toolsOf(r.tools)
		}
		return v
	})
	more("calls", d.calls, len(r.calls), func(i int) object { return callOf(r, r.calls[i]) })
	more("errors", d.errors, len(r.failures), func(i int) object { return r.failures[i].object() })
	set := object{}
	for field, v := range d.server.state(r, shape040) {
		text := encoded(v) // in order of the keys
		if !bytes.Equal(d.state[field], text) {
			set[field], d.state[field] = v, text
		}
	}
	if len(set) > 0 {
		delta["set"] = set
	}
	if len(delta) == 1 {
		return
	}
	d.err = d.send(delta)
	d.opened, d.nodes, d.calls, d.errors = true, len(r.nodes), len(r.calls), len(r.failures)
}

// reply is the end of a run of wire 0.4.0.
func (s *Server) reply(r *rollout) object {
	head := s.header(r, shape040)
	input, output := r.counts()
	return object{
		"success": true, "error": nil,
		"head": object{
			"id": r.id, "env": object{"id": s.info.Name, "name": nil}, "task": head["task"], "group": nil, "run": nil, "ok": r.ok,
			"is_timeout": false, "errors": []any{}, "num_input_tokens": input, "num_output_tokens": output, "num_total_tokens": input + output,
		},
		"traces": []any{object{"id": r.id, "nodes": len(r.nodes), "calls": len(r.calls)}},
	}
}

// whole is a trace of wire 0.2.1.
func (s *Server) whole(r *rollout) object {
	t := s.header(r, shape021)
	data := object{"prompt": chatOf(r.messages[:r.prompt])} // which is not optional there
	for field, v := range r.task.data {
		data[field] = v
	}
	t["task"] = object{"type": "Task", "data": data}
	for field, v := range s.state(r, shape021) {
		t[field] = v
	}
	nodes, calls, errs := []any{}, []any{}, []any{}
	for _, n := range r.nodes {
		nodes = append(nodes, nodeOf(n, shape021))
	}
	for _, c := range r.calls {
		calls = append(calls, callOf(r, c))
	}
	for _, f := range r.failures {
		errs = append(errs, f.object())
	}
	t["nodes"], t["calls"], t["errors"] = nodes, calls, errs
	return t
}

func objectOf(text []byte) (object, error) { return wire.Object(text) }
