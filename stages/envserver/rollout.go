package envserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/inference/render"
)

// A player plays tasks of one environment.
type player struct {
	environment env.Environment
	info        env.Info
	caller      caller
	renderer    render.Renderer
	envTimeout  time.Duration
	maxBytes    int // that the environment may say at once
	maxStuck    int
	overdue     *overdue // of the environment
	model       string
	instance    string
	endpoint    *hostEndpoint // of an environment that plays rollouts itself
	teacher     Teacher       // scores sampled tokens; the zero value is none
	newest      func() int64  // policy version that is known
	atOnce      func() int    // rollouts of the environment; nil for any number
}

// recorded is how traces name a policy; empty is the one that is trained.
func (p *player) recorded(policy string) string {
	if policy == "" {
		return ""
	}
	return p.caller.model.Recorded(policy)
}

// A rollout is one run of the policy through a task. It is for one goroutine.
//
// A limit on the policy (tokens of a call or of the rollout, turns, the rollout's time) truncates it, and it is scored
// like any other. What the policy never had a part in is a failure: an environment, a model or a teacher that fails, a
// prompt longer than the limit, time that was over before the first answer.
type rollout struct {
	*player
	task   *schemas.Task
	trace  *schemas.Trace
	talk   conversation
	agents []string // of an episode that has several
	cut    string   // why a limit ended the episode; empty if it did not
	score  env.Score
	spans  *recorder
	// sampled is told the lowest policy version among the sampled tokens after each model call.
	sampled func(version int64)
}

func (p *player) newRollout(t *schemas.Task, index int, run string, sampled func(int64)) *rollout {
	return &rollout{player: p, task: t, sampled: sampled, talk: conversation{renderer: p.renderer},
		trace: newTrace(t, index, run, p.info.Version, p.model, p.instance)}
}

// play fills in the trace. An error is a failure, or why ctx was cancelled; the trace then holds what there was.
func (r *rollout) play(ctx context.Context) error {
	ctx = r.spans.under(ctx)
	limit, share := time.Duration(r.task.TimeoutMs)*time.Millisecond, time.Duration(0)
	if r.taught() {
		share = limit / teacherShare
	}
	limit -= share
	if own := r.info.Timeout; own > 0 {
		limit = min(limit, own)
	}
	if err := r.episode(ctx, time.Now().Add(limit)); err != nil || !r.taught() {
		return err
	}
	return r.teach(ctx, time.Now().Add(share)) // whatever scoring took
}

// episode plays and scores. The deadline is that of the policy's last answer.
func (r *rollout) episode(ctx context.Context, deadline time.Time) error {
	if host, ok := r.environment.(env.Host); ok {
		return r.hosted(ctx, host, deadline)
	}
	e := r.newEpisode()
	start := time.Now()
	timing := &r.trace.Timing
	defer func() {
		r.record()
		start := time.Now()
		e.tearDown(ctx)
		timing.TeardownMs = since(start)
	}()
	begun, done := span(ctx, tracing.SetupSpan)
	open, err := e.begin(begun, r.environment, json.RawMessage(r.task.Task), env.Split(r.task.Split), int(r.task.TaskIndex), r.task.GroupSeed)
	timing.SetupMs = since(start)
	done(err)
	if open.task != nil {
		r.trace.Task = valid(string(open.task))
	}
	if _, limited := r.environment.(env.Limited); limited && ctx.Err() == nil && errors.Is(err, env.ErrFull) {
		return errFull
	}
	if err != nil {
		return fault(ctx, errorEnvironment, err)
	}
	r.agents = open.agents
	if err := r.talk.open(open.prompt, open.tools); err != nil {
		return fault(ctx, errorEnvironment, err)
	}
	if err := r.converse(ctx, e, deadline); err != nil {
		return err
	}
	start = time.Now()
	scoring, done := span(ctx, tracing.ScoreSpan)
	score, err := e.score(scoring)
	timing.ScoringMs = since(start)
	done(err)
	if err == nil {
		err = r.take(score)
	}
	if err != nil {
		return fault(ctx, errorEnvironment, err)
	}
	return nil
}

// converse lets policy and environment talk until one of them, or a limit, ends it.
func (r *rollout) converse(ctx context.Context, e *episode, deadline time.Time) error {
	timed, cancel := context.WithDeadlineCause(ctx, deadline, errDeadline)
	defer cancel()
	timing := &r.trace.Timing
	for call := 0; ; call++ {
		prompt, err := r.talk.prompt()
		if err != nil {
			return fault(ctx, errorEnvironment, err)
		}
		room := r.task.MaxRolloutTokens - len(prompt.tokens)
		if room < 1 && call == 0 {
			return fault(ctx, errorEnvironment, fmt.Errorf("the prompt has %d tokens, a rollout may have %d", len(prompt.tokens), r.task.MaxRolloutTokens))
		}
		if room < 1 {
			return r.end(stopMaxTokens)
		}
		start := time.Now()
		answer, err := r.generate(timed, r.request(prompt.tokens, room, call, r.stops()))
		timing.GenerationMs += since(start)
		if errors.Is(err, errDeadline) && call > 0 {
			return r.end(stopDeadline)
		}
		if tooLong(err) && call > 0 {
			return r.end(stopMaxTokens)
		}
		if err != nil {
			return fault(ctx, errorModel, err)
		}
		reply := r.hear(prompt, answer)
		start = time.Now()
		step, done := span(ctx, tracing.EnvironmentSpan)
		turn, err := e.reply(step, reply.Message)
		timing.EnvironmentMs += since(start)
		done(err)
		if err != nil {
			return fault(ctx, errorEnvironment, err)
		}
		for i, m := range turn.Messages {
			turn.Messages[i] = reply.answer(m)
		}
		if err := r.talk.hear(turn.Messages); err != nil {
			return fault(ctx, errorEnvironment, err)
		}
		r.trace.Truncated = turn.Truncated
		switch cut := answer.FinishReason == inference.FinishLength && !r.info.CutReplies; {
		case turn.Done:
			r.trace.Truncated = turn.Truncated || cut
			return nil
		case cut:
			return r.end(stopMaxTokens)
		}
	}
}

// request asks for what follows on tokens that leave some room, as the task says; call counts the model calls.
func (r *rollout) request(tokens []int32, room, call int, stops []int32) inference.Request {
	request := inference.Request{
		Tokens: tokens, MaxTokens: min(room, r.task.MaxTokens), Temperature: r.task.Temperature, TopP: r.task.TopP,
		Seed: mix(r.trace.Seed, call), StopTokens: stops, PinVersion: r.task.PinVersion, Policy: r.task.Policy, Model: r.model,
	}
	if r.task.Policy != "" {
		request.PinVersion = nil // it has no versions
	}
	return request
}

// generate asks for the policy's answer, for as long as the environment waits for one.
func (r *rollout) generate(ctx context.Context, request inference.Request) (inference.Completion, error) {
	if limit := r.info.TurnTimeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, limit, errDeadline)
		defer cancel()
	}
	return r.caller.generate(ctx, request)
}

// stops are the tokens that end an answer.
func (r *rollout) stops() []int32 {
	stops := r.renderer.Stop()
	if r.info.OneCall && len(r.talk.tools) > 0 {
		stops = slices.Concat(stops, r.renderer.CallStop())
	}
	return stops
}

// tooLong reports whether the model has no room for the prompt.
func tooLong(err error) bool {
	var refused *inference.Error
	return errors.As(err, &refused) && refused.Code == inference.CodeTooLong
}

// end cuts the episode.
func (r *rollout) end(why string) error {
	r.cut, r.trace.Truncated = why, true
	return nil
}

// heard is a reply as the environment gets it; broken says by id which of its calls cannot be read, and why.
type heard struct {
	env.Message
	broken map[string]error
}

func (r *rollout) hear(p prompt, a inference.Completion) heard {
	said := r.talk.say(p, a, r.task.Temperature)
	if r.talk.lowest != nil && r.sampled != nil {
		r.sampled(*r.talk.lowest)
	}
	h := heard{broken: map[string]error{}}
	var calls []env.ToolCall
	for k, c := range said.Calls {
		id := fmt.Sprintf("call_%d_%d", len(r.talk.replies)-1, k)
		if c.Err != nil {
			h.broken[id] = c.Err
		}
		calls = append(calls, env.ToolCall{ID: id, Name: c.Name, Arguments: c.Arguments})
	}
	h.Message = r.talk.call(calls)
	return h
}

// answer is the environment's message, or what is told of a call that could not be read: the environment was given it
// without a name, which is no tool.
func (h heard) answer(m env.Message) env.Message {
	if err, ok := h.broken[m.ToolCallID]; ok && m.Role == env.RoleTool {
		m.Content = "error: the tool call cannot be read: " + err.Error()
	}
	return m
}

// take records a score; that of a group replaces the rollout's own.
func (r *rollout) take(s env.Score) error {
	if err := checkScore(s); err != nil {
		return err
	}
	r.score = s
	t := r.trace
	t.Rewards, t.Metrics = map[string]*float64{}, map[string]float64{}
	for name, c := range s.Rewards {
		t.Rewards[valid(name)] = c.Value
	}
	for name, v := range s.Metrics {
		t.Metrics[valid(name)] = v
	}
	totals := map[string]*float64{}
	for agent, rewards := range s.Agents {
		if !slices.Contains(r.agents, agent) {
			return fmt.Errorf("rewards of agent %q; the agents are %q", agent, r.agents)
		}
		totals[valid(agent)] = rewards.Total()
		for name, c := range rewards {
			t.Rewards[valid(agent+"/"+name)] = c.Value
		}
	}
	r.talk.settle(totals)
	t.Reward, t.StopReason = s.Rewards.Total(), valid(s.Stop)
	if r.cut != "" {
		t.StopReason = r.cut
	}
	for k := range r.talk.replies {
		r.talk.nodes[r.talk.replies[k].node].TokenRewards = nil
	}
	for k, c := range s.CharRewards {
		if err := r.talk.reward(k, c); err != nil {
			return err
		}
	}
	return nil
}

// record puts the conversation into the trace.
func (r *rollout) record() {
	r.trace.Policy = r.recorded(r.task.Policy)
	r.trace.Nodes, r.trace.PolicyStart, r.trace.PolicyEnd = r.talk.nodes, r.talk.lowest, r.talk.highest
}

func since(start time.Time) float64 { return float64(time.Since(start).Microseconds()) / 1000 }
