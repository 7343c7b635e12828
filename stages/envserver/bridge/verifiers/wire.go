package verifiers

import (
	"errors"
	"fmt"

	"github.com/prl-project/prl/stages/envserver/env"
)

// A wire is how one generation of servers is spoken to: frames there, frames back, each beginning with the id of the request.
type wire struct {
	name string
	// health, run and cancel are what follows the id. cancel is nil where a rollout cannot be cancelled.
	health [][]byte
	run    func(task object, model env.Endpoint, with tokens) (frames [][]byte, err error)
	cancel func(of string) (id string, frames [][]byte)
	// heard reads what follows the id of an answer.
	heard func(frames [][]byte) (payload []byte, final bool, err error)
	// record starts to put together what a server says of one rollout.
	record func() record
}

// A record is what a server has said of a rollout.
type record interface {
	// add takes one message; final is the last.
	add(said object, final bool) error
	// outcome is what came of the rollout, after the last.
	outcome() (env.Outcome, error)
}

var wires = []*wire{wire040, wire021, wireV0}

func findWire(name string) *wire {
	for _, w := range wires {
		if w.name == name {
			return w
		}
	}
	return nil
}

var (
	wire040 = &wire{
		name:   "0.4.0",
		health: [][]byte{[]byte("health"), pack(object{})},
		run: func(task object, model env.Endpoint, with tokens) ([][]byte, error) {
			return [][]byte{[]byte("run"), pack(object{
				"task_data": task, "client": clientOf(model, with), "model": model.Model, "sampling": sampling(model),
			})}, nil
		},
		cancel: func(of string) (string, [][]byte) {
			return newID(), [][]byte{[]byte("cancel"), pack(object{"request_id": of})}
		},
		heard: func(frames [][]byte) ([]byte, bool, error) {
			if len(frames) != 2 || string(frames[0]) != "delta" && string(frames[0]) != "reply" {
				return nil, true, errFrames
			}
			return frames[1], string(frames[0]) == "reply", nil
		},
		record: func() record { return &assembly{traces: map[string]object{}} },
	}
	wire021 = &wire{
		name:   "0.2.1",
		health: [][]byte{[]byte("health"), pack(object{})},
		run: func(task object, model env.Endpoint, with tokens) ([][]byte, error) {
			number, ok := task["task_idx"].(int64)
			if !ok || number < 0 {
				return nil, errors.New(`the task has no number "task_idx", by which the server knows it`)
			}
			return [][]byte{[]byte("run_rollout"), pack(object{
				"task_idx": number, "client": clientOf(model, with), "model": model.Model, "sampling": sampling(model),
			})}, nil
		},
		heard:  onlyFrame,
		record: func() record { return &single{} },
	}
	wireV0 = &wire{
		name:   "v0",
		health: [][]byte{[]byte("ping")},
		run: func(task object, model env.Endpoint, with tokens) ([][]byte, error) {
			if _, ok := task["prompt"]; !ok {
				return nil, errors.New(`the task has no field "prompt"`)
			}
			return [][]byte{pack(object{
				"request_type": "run_rollout", "input": task, "client_config": clientOfV0(model, with), "model": model.Model,
				"sampling_args": sampling(model), "max_retries": 0, "state_columns": []any{"trajectory"},
			})}, nil
		},
		cancel: func(of string) (string, [][]byte) { return of, [][]byte{{}} },
		heard:  onlyFrame,
		record: func() record { return &output{} },
	}
)

var errFrames = errors.New("an answer of another form: the server speaks another wire (leave out the option wire to find out which)")

func onlyFrame(frames [][]byte) ([]byte, bool, error) {
	if len(frames) != 1 {
		return nil, true, errFrames
	}
	return frames[0], true, nil
}

// noKey names a variable that no process has: the servers then send a key that means nothing, and do not look for one elsewhere.
const noKey = "VERIFIERS_NO_KEY"

func keyVar(model env.Endpoint) string {
	if model.KeyVar == "" {
		return noKey
	}
	return model.KeyVar
}

// tokens say what servers turn messages into tokens with; the zero value is for those that send messages.
type tokens struct {
	tokenizer string // a folder
	renderer  string // a name in the package renderers; empty to find one
}

// clientOf says how the server asks the model.
func clientOf(model env.Endpoint, with tokens) object {
	c := object{"type": "eval", "base_url": model.BaseURL, "api_key_var": keyVar(model)}
	if with.tokenizer != "" {
		c["type"], c["renderer_model_name"] = "train", with.tokenizer
	}
	if with.renderer != "" {
		c["renderer"] = object{"name": with.renderer}
	}
	return c
}

func clientOfV0(model env.Endpoint, with tokens) object {
	c := object{
		"client_type": "openai_chat_completions", "api_base_url": model.BaseURL, "api_key_var": keyVar(model),
		"max_retries": 0, // the endpoint has its own
	}
	if with.tokenizer != "" {
		c["client_type"], c["renderer_model_name"] = "renderer", with.tokenizer
	}
	if with.renderer != "" {
		c["renderer"] = with.renderer
	}
	return c
}

// sampling repeats what the task says.
func sampling(model env.Endpoint) object {
	s := object{"temperature": model.Temperature}
	if model.TopP > 0 && model.TopP < 1 {
		s["top_p"] = model.TopP
	}
	if model.MaxTokens > 0 {
		s["max_tokens"] = model.MaxTokens
	}
	return s
}

// Error is what a server or its process says went wrong. It implements [env.Traced].
type Error struct {
	Message string
	Printed string // Python's traceback, or the last that the process has printed
}

var _ env.Traced = (*Error)(nil)

func (e *Error) Error() string { return e.Message }

// Traceback implements [env.Traced].
func (e *Error) Traceback() string { return e.Printed }

// refused is the error of an answer that says so itself; nil if it does not.
func refused(said object) error {
	if flagOf(said, "success") {
		return nil
	}
	message := textOf(said, "error")
	if message == "" {
		message = fmt.Sprintf("the server answered %.200s, which is neither success nor an error", toJSON(said))
	}
	return &Error{Message: message}
}
