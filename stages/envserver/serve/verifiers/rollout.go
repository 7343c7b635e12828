package verifiers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/serve"
)

// errDeadline is the end of a rollout's time.
var errDeadline = errors.New("the time of the rollout is over")

// Why a limit ended a rollout.
const (
	stopMaxTokens = "max_tokens"
	stopTimeout   = "timeout"
)

// rollout is what a rollout comes to. It grows while it is played.
type rollout struct {
	id       string
	task     task
	player   player
	endpoint string
	tools    []env.Tool
	nodes    []node
	calls    []call
	failures []failure

	rewards   env.Rewards
	metrics   map[string]float64
	score     env.Score
	stop      string
	completed bool // it has ended
	ok        bool // and has a score
	truncated bool
	timeout   bool

	prompt   int           // messages before the first reply
	messages []env.Message // in order
	replies  []int         // which of them the policy said
	steps    []spoken      // its turns
	timing   timing
	changed  func(*rollout) // called whenever there is more; nil for nobody
}

type node struct {
	parent  int // -1 at the root
	message env.Message
	think   string
	sampled bool
	at      time.Time
	tokens  *tokens
}

type call struct {
	node   int // -1 for one that failed
	finish string
	usage  *usage
	span   span
	err    *failure
}

type failure struct {
	kind      string
	message   string
	status    int
	traceback string
}

type span struct{ start, end time.Time }

type timing struct{ start, setup, agent, scoring span }

// play plays a rollout to its end. An error is of ctx; whatever else goes wrong is in the rollout.
func (s *Server) play(ctx context.Context, r *rollout) error {
	r.timing.start.start = time.Now()
	fault, err := s.attempt(ctx, r)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		f := failure{kind: fault, message: err.Error(), traceback: traceback(err)}
		var wrong *modelError
		if errors.As(err, &wrong) {
			f.status = wrong.status
		}
		r.failures = append(r.failures, f)
		r.stop, r.ok = map[string]string{providerError: "provider_error", taskError: "task_error"}[fault], false
		s.log.Warn("a rollout failed", "env", s.info.Name, "split", r.task.chosen.Split, "task_index", r.task.chosen.Index, "error", err)
	}
	r.completed = true
	r.notify()
	return nil
}

// Types of errors, as verifiers has them.
const (
	providerError = "ProviderError" // the model's
	taskError     = "TaskError"     // the environment's
)

func (r *rollout) notify() {
	if r.changed != nil {
		r.changed(r)
	}
}

func (s *Server) attempt(ctx context.Context, r *rollout) (fault string, err error) {
	limit := s.cfg.Limits.Rollout
	if own := s.info.Timeout; own > 0 {
		limit = min(limit, own)
	}
	timed, cancel := context.WithTimeoutCause(ctx, limit, errDeadline)
	defer cancel()
	r.timing.setup.start = time.Now()
	r.notify()
	episode, err := s.Begin(ctx, r.task.chosen, r.task.own)
	r.timing.setup.end = time.Now()
	if err != nil {
		return taskError, err
	}
	defer episode.Close()
	r.tools = episode.Tools()
	var speaks speaker
	if r.player.tokens {
		t, err := s.newTalk(r.player, r.tools)
		if err != nil {
			return providerError, err
		}
		defer t.close()
		speaks = t
	} else {
		speaks = s.newChat(r.player, r.tools, r.id)
	}
	r.endpoint = speaks.endpoint()
	r.timing.agent.start = time.Now()
	fault, err = s.converse(ctx, timed, r, episode, speaks)
	r.timing.agent.end = time.Now()
	if err != nil {
		return fault, err
	}
	r.timing.scoring.start = time.Now()
	r.notify()
	score, err := episode.Score(ctx)
	r.timing.scoring.end = time.Now()
	if err != nil {
		return taskError, err
	}
	r.take(score)
	r.ok = true
	return "", nil
}

// take records a score.
func (r *rollout) take(score env.Score) {
	r.score, r.rewards, r.metrics = score, score.Rewards, score.Metrics
	if r.stop == "" {
		r.stop = score.Stop
	}
}

// converse lets model and environment talk until one of them or a limit ends it.
func (s *Server) converse(ctx, timed context.Context, r *rollout, episode *serve.Episode, speaks speaker) (fault string, err error) {
	hear := func(messages []env.Message) error {
		r.messages = append(r.messages, messages...)
		return speaks.hear(messages)
	}
	if err := hear(episode.Prompt()); err != nil {
		return taskError, err
	}
	r.prompt = len(r.messages)
	for n := 0; ; n++ {
		said, err := s.ask(timed, r, speaks, n)
		var wrong *modelError
		switch {
		case err != nil && n > 0 && errors.Is(context.Cause(timed), errDeadline):
			r.stop, r.truncated, r.timeout = stopTimeout, true, true
			return "", nil
		case n > 0 && errors.As(err, &wrong) && wrong.full:
			r.stop, r.truncated = stopMaxTokens, true
			return "", nil
		case errors.As(err, &wrong):
			return providerError, err
		case err != nil:
			return taskError, err
		}
		if s.info.OneCall && len(said.reply.ToolCalls) > 1 {
			said.reply.ToolCalls = said.reply.ToolCalls[:1]
		}
		r.said(said)
		turn, err := episode.Reply(ctx, said.reply)
		if err != nil {
			return taskError, err
		}
		cut := said.finish == "length" && !s.info.CutReplies
		if !turn.Done && !cut {
			if err := hear(turn.Messages); err != nil {
				return taskError, err
			}
			continue
		}
		r.messages = append(r.messages, turn.Messages...)
		r.truncated = turn.Truncated || cut
		if cut && !turn.Done {
			r.stop = stopMaxTokens
		}
		return "", nil
	}
}

// ask makes a model call, and records one that failed.
func (s *Server) ask(ctx context.Context, r *rollout, speaks speaker, n int) (spoken, error) {
	if limit := s.info.TurnTimeout; limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	start := time.Now()
	said, err := speaks.say(ctx, n)
	c := call{node: -1, span: span{start, time.Now()}, finish: said.finish, usage: said.usage}
	if err != nil {
		c.err = &failure{kind: providerError, message: err.Error()}
		var wrong *modelError
		if errors.As(err, &wrong) {
			c.err.status = wrong.status
		}
	} else {
		c.node = len(r.nodes) + len(said.shown)
	}
	r.calls = append(r.calls, c)
	return said, err
}

// said appends a turn: what the policy was shown, and what it said.
func (r *rollout) said(said spoken) {
	now := time.Now()
	for _, m := range said.shown {
		r.nodes = append(r.nodes, node{parent: len(r.nodes) - 1, message: m.Message, at: now, tokens: m.tokens})
	}
	r.nodes = append(r.nodes, node{parent: len(r.nodes) - 1, message: said.reply, think: said.think, sampled: true, at: now, tokens: said.tokens})
	r.replies = append(r.replies, len(r.messages))
	r.messages, r.steps = append(r.messages, said.reply), append(r.steps, said)
	r.notify()
}

// asRollout is the rollout as a group scorer sees it.
func (r *rollout) asRollout() env.Rollout {
	return env.Rollout{Messages: r.messages, Replies: r.replies, Score: r.score}
}

func traceback(err error) string {
	var traced env.Traced
	if errors.As(err, &traced) {
		return traced.Traceback()
	}
	return ""
}

// compares reports whether the environment compares the rollouts of a task.
func (s *Server) compares() bool {
	_, ok := s.Env.(env.GroupScorer)
	return ok
}

// group plays rollouts of a task, and has them compared where the environment does that.
func (s *Server) group(ctx context.Context, rollouts []*rollout, compared bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error)
	for _, r := range rollouts {
		go func() {
			free, err := s.place(ctx)
			if err == nil {
				defer free()
				err = s.play(ctx, r)
			}
			done <- err
		}()
	}
	var first error
	for range rollouts {
		if err := <-done; err != nil && first == nil {
			first = err
			cancel(err)
		}
	}
	if first != nil {
		return first
	}
	scorer, ok := s.Env.(env.GroupScorer)
	if !ok || !compared {
		return nil
	}
	var group []env.Rollout
	for _, r := range rollouts {
		if !r.ok {
			return nil // as in a run: a group that is not whole is not compared
		}
		group = append(group, r.asRollout())
	}
	own, err := s.Task(ctx, rollouts[0].task.chosen.Split, rollouts[0].task.chosen.Index)
	if t := rollouts[0].task.own; len(t) > 0 {
		own, err = t, nil
	}
	if err != nil {
		return err
	}
	scores, err := env.ScoreGroup(ctx, scorer, own, group)
	if err != nil {
		return fmt.Errorf("compare the rollouts: %w", err)
	}
	for i, r := range rollouts {
		r.rewards, r.metrics = scores[i].Rewards, scores[i].Metrics
	}
	return nil
}
