package openenv

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// message is what goes over the socket, there and back, strictly in turns and without a number.
type message struct {
	Type string `json:"type"`
	Data any    `json:"data,omitempty"`
}

// answer is a message of the server.
type answer struct {
	Type string          `json:"type"`
	Data json.RawMessage `json:"data"`
}

// Codes of an answer of type "error". The first three are answers to one message, after which the session goes on; the others
// come unasked when a session begins or breaks, and the server closes it.
const (
	codeValidation = "VALIDATION_ERROR"
	codeExecution  = "EXECUTION_ERROR"
	codeCapacity   = "CAPACITY_REACHED"
)

// refusal is an answer of type "error".
type refusal struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	// Errors are pydantic's, of an action that does not fit its schema.
	Errors []struct {
		Loc []any  `json:"loc"`
		Msg string `json:"msg"`
	} `json:"errors"`
	Max int `json:"max_sessions"` // of CAPACITY_REACHED
}

func (r *refusal) Error() string { return "the server answered " + r.Code + ": " + r.told() }

// told is what was wrong, in words.
func (r *refusal) told() string {
	if len(r.Errors) == 0 {
		return short(r.Message)
	}
	var parts []string
	for _, e := range r.Errors {
		var at []string
		for _, l := range e.Loc {
			at = append(at, fmt.Sprint(l))
		}
		parts = append(parts, strings.Join(at, ".")+": "+e.Msg)
	}
	return short(strings.Join(parts, "; "))
}

// Is says that it was about room.
func (r *refusal) Is(target error) bool { return r.Code == codeCapacity && target == env.ErrFull }

// short bounds what a server says of an error.
func short(text string) string {
	const most = 4000
	if len(text) > most {
		text = text[:most] + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

// result is the data of an answer of type "observation".
type result struct {
	Observation json.RawMessage            `json:"observation"`
	Reward      number                     `json:"reward"`
	Done        bool                       `json:"done"`
	Metadata    map[string]json.RawMessage `json:"metadata"`
}

// number is a figure that may be missing, or be true or false.
type number struct{ v *float64 }

// UnmarshalJSON implements [json.Unmarshaler].
func (n *number) UnmarshalJSON(text []byte) error {
	n.v = nil
	var truth bool
	var v float64
	switch {
	case string(text) == "null":
		return nil
	case json.Unmarshal(text, &truth) == nil:
		if truth {
			v = 1
		}
	default:
		if err := json.Unmarshal(text, &v); err != nil {
			return fmt.Errorf("%.40s is not a number", text)
		}
	}
	n.v = &v
	return nil
}

// decode reads an answer; an error of type *refusal is the server's own.
func decode(text []byte) (answer, error) {
	var a answer
	if err := json.Unmarshal(text, &a); err != nil || a.Type == "" {
		return a, fmt.Errorf("the server sent %.200q, which is no message of OpenEnv", text)
	}
	if a.Type != "error" {
		return a, nil
	}
	r := &refusal{}
	if err := json.Unmarshal(a.Data, r); err != nil || r.Code == "" {
		return a, fmt.Errorf("the server sent %.200q, which is no error of OpenEnv", text)
	}
	return a, r
}

// observed reads the answer to a reset or a step.
func observed(a answer) (result, error) {
	var r result
	if a.Type != "observation" {
		return r, fmt.Errorf("the server answered with %.40q, want an observation", a.Type)
	}
	if err := json.Unmarshal(a.Data, &r); err != nil {
		return r, fmt.Errorf("the observation %.200s: %w", a.Data, err)
	}
	if len(r.Observation) == 0 || r.Observation[0] != '{' {
		return r, errors.New("the server answered with an observation that is no object")
	}
	if r.Metadata == nil { // a server of 0.3.0 has them in the observation alone, or nowhere
		var in struct{ Metadata map[string]json.RawMessage }
		if err := json.Unmarshal(r.Observation, &in); err == nil {
			r.Metadata = in.Metadata
		}
	}
	return r, nil
}
