package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
)

// A Host is an environment that plays whole rollouts itself and asks a model over HTTP for what the policy says: a server of
// another framework, an agent's harness, a program in a sandbox. It has no episodes, so it embeds [Hosted] for Start. Its
// Info.MaxTurns is how many model calls a rollout may have.
//
// What holds: the rollout's trace has what the policy saw and sampled as the endpoint recorded it, token by token, whatever
// the host makes of it; the host only says what that was worth. The endpoint keeps the limits on the policy. When one is
// reached it answers 400 with code context_length_exceeded, now and ever after: the host should end the rollout there and
// score it, as one that is truncated.
type Host interface {
	Environment
	// Run plays one rollout to its end and scores it. It is called by many goroutines at once. An error, as everywhere here,
	// is a failure of the infrastructure, and so is an outcome of a rollout one of whose model calls failed, even if the host
	// thinks otherwise. Only the error of a host that fails behind a limit on the policy is taken for the limit's, unless it is
	// a [LostError] or a panic. When ctx ends the host stops the rollout and lets go of what it holds; it has failed then, whatever
	// Run returns, and the endpoint answers 410.
	Run(ctx context.Context, job Job) (Outcome, error)
}

// Job is one rollout for a [Host].
type Job struct {
	// Task is the JSON of the task. It may have come from elsewhere and have fields that the host does not know.
	Task json.RawMessage
	// Split and Index say which one it is.
	Split Split
	Index int
	// Seed is the same for all rollouts of a group, as with Environment.Start. Sampling has seeds of its own, which the
	// endpoint knows.
	Seed int64
	// Model answers for the policy.
	Model Endpoint
}

// Endpoint is where and how a host asks for what the policy says, with OpenAI's chat completions (streamed or not), models,
// and /inference/v1/generate beside /v1. The environment server's own endpoint samples as the task says: parameters of a
// request may repeat that or be left out; max_tokens may ask for less.
type Endpoint struct {
	// BaseURL ends in /v1. In training and evals it is of this one rollout, on this machine, and says who asks: it is a secret.
	BaseURL string
	// Model is the name to ask for.
	Model string
	// Key is sent as bearer token; empty for none.
	Key string
	// KeyVar names the variable of this process's environment that Key was read from, for hosts whose own processes inherit
	// it; empty where there is none.
	KeyVar string
	// Temperature and TopP are what the task says.
	Temperature, TopP float64
	// MaxTokens is how many tokens one call samples at most, MaxContext how many a conversation has at most, prompt included;
	// 0 where nobody says.
	MaxTokens, MaxContext int
}

// Outcome is how a rollout of a [Host] ended.
type Outcome struct {
	// Score is what it was worth. It has no character rewards, and none of several agents.
	Score Score
	// Truncated says that the host knows of a limit on the policy that ended it, of its own or the endpoint's. The endpoint's
	// are known without it.
	Truncated bool
	// Info is a JSON object of whatever else the host tells of the rollout; the trace keeps it. Empty for none.
	Info json.RawMessage
	// Replies are the tokens of replies of the policy as the host has them, in any order; nil where it has none. One that the
	// endpoint did not record is an error of the rollout.
	Replies [][]int32
	// Messages are the conversation as the host tells it, for people who try it without an endpoint of the environment
	// server; the trace has its own.
	Messages []Message
}

// LostError is an error of [Host].Run that nothing in the rollout explains: what played it was killed, hangs or cannot be reached.
type LostError struct{ Err error }

func (l *LostError) Error() string { return l.Err.Error() }

func (l *LostError) Unwrap() error { return l.Err }

// Hosted is the Start of a [Host].
type Hosted struct{}

// ErrHosted says that an environment has no episodes, since it plays its rollouts itself.
var ErrHosted = errors.New("the environment plays its rollouts itself and asks a model over HTTP: it has no episodes to play by hand or to replay; try it with --try N --url …")

// Start implements Environment.
func (Hosted) Start(context.Context, json.RawMessage, int64) (Episode, error) { return nil, ErrHosted }

// RunHost plays a rollout, for a runner: a panic becomes a [PanicError], and what cannot be recorded is an error. An empty stop
// reason becomes "done".
func RunHost(ctx context.Context, h Host, job Job) (out Outcome, err error) {
	defer func() {
		if v := recover(); v != nil {
			out, err = Outcome{}, &PanicError{Value: v, Stack: string(debug.Stack())}
		}
	}()
	name := h.Info().Name
	if out, err = h.Run(ctx, job); err != nil {
		return Outcome{}, fmt.Errorf("run %s: %w", name, err)
	}
	if err := out.check(); err != nil {
		return Outcome{}, fmt.Errorf("run %s: %w", name, err)
	}
	if out.Score.Stop == "" {
		out.Score.Stop = "done"
	}
	return out, nil
}

// maxInfo bounds what the trace keeps of a host's words.
const maxInfo = 1 << 20

func (o Outcome) check() error {
	var object map[string]json.RawMessage
	switch {
	case len(o.Score.CharRewards) > 0:
		return errors.New("rewards of characters: a host has none")
	case len(o.Score.Agents) > 0:
		return errors.New("rewards of several agents: a host has none")
	case len(o.Info) > maxInfo:
		return fmt.Errorf("the info has %d bytes: at most %d", len(o.Info), maxInfo)
	case len(o.Info) > 0 && json.Unmarshal(o.Info, &object) != nil:
		return errors.New("the info is no JSON object")
	}
	return o.Score.Check(nil)
}
