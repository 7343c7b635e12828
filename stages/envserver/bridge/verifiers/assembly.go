package verifiers

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/prl-project/prl/stages/envserver/env"
)

// assembly puts a rollout of wire 0.4.0 together: deltas, each of which has the new part of one trace, and a reply with the
// episode's head and what the traces must have come to.
type assembly struct {
	traces map[string]object
	begun  []string // in order
	retry  bool     // an attempt was given up
	reply  object
}

// growing are the lists of a trace, of which a delta has the new items.
var growing = []string{"nodes", "calls", "errors", "extra_usage", "request_rewrites", "response_rewrites"}

// known are the parts of a delta that are not its trace's own; others survive as fields of the trace.
var known = map[string]bool{"trace": true, "open": true, "set": true, "pending": true, "links": true, "routing_repairs": true, "discard": true}

func init() {
	for _, field := range growing {
		known[field] = true
	}
}

func (a *assembly) add(said object, final bool) error {
	if final {
		a.reply = said
		if err := refused(said); err != nil {
			return err
		}
		return a.count()
	}
	return a.grow(said)
}

func (a *assembly) grow(delta object) error {
	id := textOf(delta, "trace")
	if flagOf(delta, "discard") {
		delete(a.traces, id)
		a.retry = true
		return nil
	}
	t := a.traces[id]
	if t == nil {
		open := objectOf(delta, "open")
		if open == nil {
			return fmt.Errorf("a delta of trace %q, which has not begun", id)
		}
		t = object{}
		for field, v := range open {
			t[field] = v
		}
		for _, field := range growing {
			t[field] = []any{}
		}
		a.traces[id] = t
		a.begun = append(a.begun, id)
	}
	nodes := listOf(t, "nodes")
	for at, links := range objectOf(delta, "links") {
		n, err := strconv.Atoi(at)
		if err != nil || n < 0 || n >= len(nodes) {
			return fmt.Errorf("a delta links node %s of %d", at, len(nodes))
		}
		node, _ := nodes[n].(object)
		more, _ := links.([]any)
		if node == nil {
			return fmt.Errorf("node %d is no object", n)
		}
		node["semantic_parents"] = append(listOf(node, "semantic_parents"), more...)
	}
	for _, field := range growing {
		if more, ok := delta[field]; ok {
			items, ok := more.([]any)
			if !ok {
				return fmt.Errorf("%s of a delta are of type %T", field, more)
			}
			t[field] = append(listOf(t, field), items...)
		}
	}
	for field, v := range objectOf(delta, "set") {
		t[field] = v
	}
	for field, v := range delta {
		if !known[field] {
			t[field] = v
		}
	}
	return nil
}

// count holds the traces to what the reply says of them: what was lost on the way would not be noticed otherwise.
func (a *assembly) count() error {
	for _, v := range listOf(a.reply, "traces") {
		said, _ := v.(object)
		id := textOf(said, "id")
		t := a.traces[id]
		if t == nil {
			return fmt.Errorf("the server tells of a trace %q, of which nothing came", id)
		}
		for _, field := range []string{"nodes", "calls"} {
			want, ok := numberOf(said[field])
			if got := len(listOf(t, field)); !ok || want == nil || *want != float64(got) {
				return fmt.Errorf("trace %s has %d %s, the server says %v", id, got, field, said[field])
			}
		}
	}
	return nil
}

func (a *assembly) outcome() (env.Outcome, error) {
	head := objectOf(a.reply, "head")
	var traces, played []object
	for _, id := range a.begun {
		t := a.traces[id]
		if t == nil {
			continue
		}
		traces = append(traces, t)
		if trainable, ok := objectOf(t, "agent")["trainable"].(bool); !ok || trainable {
			played = append(played, t)
		}
	}
	switch {
	case head == nil:
		return env.Outcome{}, errors.New("the reply has no head")
	case a.retry:
		return env.Outcome{}, errors.New("the server has tried the rollout again by itself, and what the policy said the first time cannot be told apart: " +
			"leave retries out of args, this run retries by itself")
	case !flagOf(head, "ok"):
		return failed(append(listOf(head, "errors"), errorsOf(traces)...), played, envelope(wire040, head, traces))
	case len(played) != 1:
		return env.Outcome{}, fmt.Errorf("%d agents that the policy plays: this bridge knows environments with one", len(played))
	}
	t := played[0]
	rewards, err := weighed(objectOf(t, "rewards"))
	if err != nil {
		return env.Outcome{}, err
	}
	return finished(t, rewards, envelope(wire040, head, traces)), nil
}

func errorsOf(traces []object) (all []any) {
	for _, t := range traces {
		all = append(all, listOf(t, "errors")...)
	}
	return all
}

// weighed reads {name: {score, weight}}, where a component that was not scored is null.
func weighed(said object) (env.Rewards, error) {
	rewards := env.Rewards{}
	for name, v := range said {
		if v == nil {
			rewards[name] = env.NotApplicable(1)
			continue
		}
		r, _ := v.(object)
		score, ok := numberOf(r["score"])
		weight, weighs := numberOf(r["weight"])
		if !ok || !weighs || r == nil {
			return nil, fmt.Errorf("reward %q is %.100s", name, toJSON(v))
		}
		one := 1.0
		if weight == nil {
			weight = &one
		}
		rewards[name] = env.Reward{Value: score, Weight: *weight}
	}
	return rewards, nil
}
