package try

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Whose fault a rollout without a reward is, as in traces.
const (
	faultModel       = "model"
	faultEnvironment = "environment"
)

// Why a limit on the policy ended a rollout, as in traces.
const (
	stopMaxTokens = "max_tokens"
	stopDeadline  = "deadline"
)

// errDeadline is the end of a rollout's time.
var errDeadline = errors.New("the time of the rollout is over")

// Result is one rollout, and a line of --json.
type Result struct {
	Env     string `json:"env"`
	Version string `json:"env_version"`
	Model   string `json:"model"`
	// Rollout counts from 0. Split, TaskIndex and Seed play the same task again (--split, --task, --seed).
	Rollout   int             `json:"rollout"`
	Split     env.Split       `json:"split"`
	TaskIndex int             `json:"task_index"`
	Seed      int64           `json:"seed"`
	Task      json.RawMessage `json:"task,omitempty"`
	Messages  []Message       `json:"messages"`
	// Reward is the weighted sum of those of Rewards that apply; null if none does, or the rollout failed.
	Reward  *float64            `json:"reward"`
	Rewards map[string]*float64 `json:"rewards"`
	// Agents are the rewards of agents that have some of their own.
	Agents     map[string]AgentResult `json:"agents,omitempty"`
	Metrics    map[string]float64     `json:"metrics"`
	StopReason string                 `json:"stop_reason,omitempty"`
	Truncated  bool                   `json:"truncated"`
	// Info is what an environment that plays rollouts itself tells beside.
	Info json.RawMessage `json:"info,omitempty"`
	// Error is why there is no reward; null if there is one, or could be.
	Error   *Failure `json:"error"`
	Replies int      `json:"replies"`
	// PromptTokens and CompletionTokens are summed over the model calls, as far as the server says.
	PromptTokens     int     `json:"prompt_tokens"`
	CompletionTokens int     `json:"completion_tokens"`
	Seconds          float64 `json:"seconds"`

	weights map[string]float64
	cause   error // of Error
}

// AgentResult is what one agent of several got.
type AgentResult struct {
	Reward  *float64            `json:"reward"`
	Rewards map[string]*float64 `json:"rewards"`
}

// Message is one of the conversation, with what the model thought where its server tells.
type Message struct {
	env.Message
	Reasoning string `json:"reasoning,omitempty"`
}

// Failure is why a rollout has no reward.
type Failure struct {
	Type      string `json:"type"` // model or environment
	Message   string `json:"message"`
	Traceback string `json:"traceback,omitempty"`
}

// rollout plays the i-th task. It has a score, or an Error; after the end of ctx nothing in it means anything.
func (r *Run) rollout(ctx context.Context, i int) *Result {
	info := r.Env.Info()
	res := &Result{Env: info.Name, Version: info.Version, Model: r.server.Model, Rollout: i, Messages: []Message{}}
	start := time.Now()
	fault, err := r.play(ctx, i, res)
	res.Seconds = time.Since(start).Seconds()
	if err != nil {
		res.fail(fault, err)
	}
	return res
}

func (res *Result) fail(fault string, err error) {
	res.Error, res.cause = &Failure{fault, err.Error(), traceback(err)}, err
	res.Truncated = false
}

func (r *Run) play(ctx context.Context, i int, res *Result) (fault string, _ error) {
	limit := r.Limits.Rollout
	if own := r.Env.Info().Timeout; own > 0 {
		limit = min(limit, own)
	}
	deadline := time.Now().Add(limit)
	g, err := r.Tasks.game(r.Env, i)
	res.Split, res.TaskIndex, res.Seed, res.Task = g.split, g.index, g.seed, g.task
	if err != nil {
		return faultEnvironment, err
	}
	if h, ok := r.Env.(env.Host); ok {
		return r.host(ctx, h, g, res, deadline)
	}
	s, err := limited(ctx, r.Limits.Env, func(ctx context.Context) (*env.Session, error) { return env.Begin(ctx, r.Env, g.task, g.seed) })
	if err != nil {
		return faultEnvironment, err
	}
	defer func() { _ = s.Close() }() // the rollout is over, and its score does not depend on it
	cut, fault, err := r.converse(ctx, s, res, deadline)
	if err != nil {
		return fault, err
	}
	score, err := limited(ctx, r.Limits.Env, s.Score)
	if err != nil {
		return faultEnvironment, err
	}
	res.take(score)
	if cut != "" {
		res.StopReason, res.Truncated = cut, true
	}
	return "", nil
}

// take records a score.
func (res *Result) take(s env.Score) {
	res.Reward, res.StopReason, res.Metrics = s.Rewards.Total(), s.Stop, s.Metrics
	res.Rewards, res.weights = map[string]*float64{}, map[string]float64{}
	for name, c := range s.Rewards {
		res.Rewards[name], res.weights[name] = c.Value, c.Weight
	}
	for agent, rewards := range s.Agents {
		a := AgentResult{rewards.Total(), map[string]*float64{}}
		for name, c := range rewards {
			a.Rewards[name] = c.Value
		}
		if res.Agents == nil {
			res.Agents = map[string]AgentResult{}
		}
		res.Agents[agent] = a
	}
	if res.Metrics == nil {
		res.Metrics = map[string]float64{}
	}
}

// converse lets model and environment talk until one of them or a limit, which cut names, ends it.
func (r *Run) converse(ctx context.Context, s *env.Session, res *Result, deadline time.Time) (cut, fault string, err error) {
	timed, cancel := context.WithDeadlineCause(ctx, deadline, errDeadline)
	defer cancel()
	info, tools := r.Env.Info(), s.Tools()
	talks := map[string][]chatMessage{} // by agent
	agent := ""
	request := chatRequest{Model: r.server.Model, Tools: told(tools), Temperature: r.Sampling.Temperature, MaxTokens: r.Sampling.MaxTokens}
	if r.Sampling.Seed != nil {
		seed := *r.Sampling.Seed + int64(res.Rollout)
		request.Seed = &seed
	}
	hear := func(messages []env.Message) error {
		shown, err := sent(messages, r.Alt)
		for _, m := range messages {
			agent = m.Agent
			res.Messages = append(res.Messages, Message{Message: m})
		}
		talks[agent] = append(talks[agent], shown...)
		return err
	}
	if err := hear(s.Prompt()); err != nil {
		return "", faultEnvironment, err
	}
	for call := 0; ; call++ {
		request.Messages = talks[agent]
		a, err := r.answer(timed, request, call)
		var refused *refusal
		switch {
		case errors.Is(err, errDeadline) && call > 0:
			return stopDeadline, "", nil
		case errors.As(err, &refused) && refused.tooLong() && call > 0:
			return stopMaxTokens, "", nil
		case err != nil:
			return "", faultModel, err
		}
		said := a.message
		switch {
		case len(tools) == 0:
			said.ToolCalls = nil // it was told of none
		case info.OneCall && len(said.ToolCalls) > 1:
			said.ToolCalls = said.ToolCalls[:1]
		}
		said.Agent = agent
		if err := hear([]env.Message{said}); err != nil {
			return "", faultModel, err
		}
		res.Messages[len(res.Messages)-1].Reasoning = a.reasoning
		res.Replies++
		full := false
		if u := a.usage; u != nil {
			res.PromptTokens, res.CompletionTokens = res.PromptTokens+u.prompt, res.CompletionTokens+u.completion
			full = r.Sampling.MaxRolloutTokens > 0 && u.prompt+u.completion >= r.Sampling.MaxRolloutTokens
		}
		turn, err := limited(ctx, r.Limits.Env, func(ctx context.Context) (env.Turn, error) { return s.Reply(ctx, said) })
		if err != nil {
			return "", faultEnvironment, err
		}
		if err := hear(turn.Messages); err != nil {
			return "", faultEnvironment, err
		}
		res.Truncated = turn.Truncated
		switch short := a.cut && !info.CutReplies; {
		case turn.Done:
			res.Truncated = turn.Truncated || short
			return "", "", nil
		case short || full:
			return stopMaxTokens, "", nil
		}
	}
}

// answer asks the model, for as long as the environment waits for a reply.
func (r *Run) answer(ctx context.Context, request chatRequest, call int) (answer, error) {
	if limit := r.Env.Info().TurnTimeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errDeadline)
		defer cancel()
	}
	return r.client.chat(ctx, request, call)
}

// bounded is rollout, given up where the environment does not heed its deadlines.
func (r *Run) bounded(ctx context.Context, i int) *Result {
	const grace = time.Second
	done := make(chan *Result, 1)
	go func() { done <- r.rollout(ctx, i) }()
	longest := r.Limits.Rollout + 3*r.Limits.Env + grace // start, last reply and score are beside the rollout's own time
	select {
	case res := <-done:
		return res
	case <-time.After(longest):
	case <-ctx.Done():
		select {
		case res := <-done:
			return res
		case <-time.After(grace):
		}
	}
	info := r.Env.Info()
	n := int64(info.Tasks(r.Tasks.Split))
	res := &Result{
		Env: info.Name, Version: info.Version, Model: r.server.Model, Rollout: i, Messages: []Message{},
		Split: r.Tasks.Split, TaskIndex: int((int64(r.Tasks.First) + int64(i)) % n), Seed: r.Tasks.Seed + int64(i), Seconds: longest.Seconds(),
	}
	res.fail(faultEnvironment, fmt.Errorf("the environment has not returned in %v, and is left alone", longest))
	return res
}
