package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime/debug"
	"slices"
)

// ErrDone is returned for a reply to an episode that is over; it is a mistake of the runner.
var ErrDone = errors.New("the episode is done")

// PanicError is a panic of an environment, as an error of the infrastructure.
type PanicError struct {
	Value any
	Stack string
}

func (p *PanicError) Error() string { return fmt.Sprintf("environment panicked: %v", p.Value) }

// Traceback implements [Traced].
func (p *PanicError) Traceback() string { return p.Stack }

// Traced is an error of an environment that knows where in its code it came from; the trace of the rollout keeps that.
type Traced interface {
	error
	Traceback() string
}

// Session plays one episode for a runner and keeps what this package promises: a done episode gets no further call, tool calls
// are dispatched, each agent gets its prompt, MaxTurns holds, panics become [PanicError], and a score is recordable. After an error it can only be closed.
// It is for one goroutine.
type Session struct {
	info    Info
	episode Episode
	prompt  []Message
	tools   *toolset
	agents  []string        // of an episode that has several
	agent   string          // who speaks next; empty where there is one
	met     map[string]bool // agents that have their prompt
	replies []string        // contents of the replies so far
	spoken  []int           // which of them went to Episode.Reply
	done    bool
	cut     bool // by MaxTurns
	failed  error
}

// Begin starts an episode. Its errors, as those of every method, are errors of the infrastructure.
func Begin(ctx context.Context, e Environment, task json.RawMessage, seed int64) (*Session, error) {
	s := &Session{}
	err := s.guard(func() (err error) {
		if s.info = e.Info(); s.info.MaxTurns < 1 {
			return fmt.Errorf("MaxTurns is %d, want at least 1", s.info.MaxTurns)
		}
		if s.episode, err = e.Start(ctx, task, seed); err != nil {
			return err
		}
		if s.episode == nil {
			return errors.New("no episode and no error")
		}
		if s.prompt = slices.Clone(s.episode.Prompt()); len(s.prompt) == 0 {
			return errors.New("the prompt is empty")
		}
		if s.tools, err = toolsOf(s.episode); err != nil {
			return err
		}
		return s.meet()
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("start %s: %w", s.info.Name, err), s.Close())
	}
	return s, nil
}

// Prompt is what the policy sees first, as the first agent where there are several.
func (s *Session) Prompt() []Message { return slices.Clone(s.prompt) }

// Agents are the agents of an episode that has several; empty for one that has not.
func (s *Session) Agents() []string { return slices.Clone(s.agents) }

// Tools are the tools the policy may call; empty if there are none.
func (s *Session) Tools() []Tool { return s.tools.list() }

// Turns is the number of replies so far.
func (s *Session) Turns() int { return len(s.replies) }

// Reply hands the episode what the policy said. A reply without tool calls goes to Episode.Reply, as does any reply if there are
// no tools. Of one with tool calls each is run in order and answered by a tool message, what stands beside them in the content
// is not acted on, and once a call has ended the episode ([Finisher]) the rest are not run. After MaxTurns replies the turn is
// Done and Truncated, if the episode was not done by itself. Turn.Agent is who speaks next, and its prompt stands in front of
// the first messages for it.
func (s *Session) Reply(ctx context.Context, reply Message) (Turn, error) {
	if s.failed != nil {
		return Turn{}, s.failed
	}
	if s.done {
		return Turn{}, ErrDone
	}
	var turn Turn
	reply.Agent = s.agent
	toTools := len(reply.ToolCalls) > 0 && len(s.tools.tools) > 0
	err := s.guard(func() (err error) {
		if toTools {
			turn, err = s.call(ctx, reply.ToolCalls)
		} else {
			turn, err = s.episode.Reply(ctx, reply)
		}
		if err != nil {
			return err
		}
		turn.Done = turn.Done || turn.Truncated
		return s.pass(&turn)
	})
	if err != nil {
		s.failed = fmt.Errorf("%s, reply %d: %w", s.info.Name, len(s.replies), err)
		return Turn{}, s.failed
	}
	if !toTools {
		s.spoken = append(s.spoken, len(s.replies))
	}
	s.replies = append(s.replies, reply.Content)
	if !turn.Done && len(s.replies) >= s.info.MaxTurns {
		turn.Done, turn.Truncated, s.cut = true, true, true
	}
	s.done = turn.Done
	return turn, nil
}

func (s *Session) call(ctx context.Context, calls []ToolCall) (Turn, error) {
	var turn Turn
	for _, c := range calls {
		m, err := s.tools.call(ctx, s.episode, c)
		if err != nil {
			return Turn{}, err
		}
		turn.Messages = append(turn.Messages, m)
		if f, ok := s.episode.(Finisher); ok && f.Done() {
			turn.Done = true
			break
		}
	}
	return turn, nil
}

// Score ends the episode, if it was not done, and asks it for its score. A session is scored at most once.
func (s *Session) Score(ctx context.Context) (Score, error) {
	if s.failed != nil {
		return Score{}, s.failed
	}
	s.done = true
	var score Score
	err := s.guard(func() (err error) {
		score, err = s.episode.Score(ctx)
		return err
	})
	if err == nil {
		err = s.known(score.Agents)
	}
	if err == nil {
		if score.CharRewards, err = s.place(score.CharRewards); err == nil {
			err = score.Check(s.replies)
		}
	}
	if err != nil {
		s.failed = fmt.Errorf("score %s: %w", s.info.Name, err)
		return Score{}, s.failed
	}
	switch {
	case score.Stop != "":
	case s.cut:
		score.Stop = "max_turns"
	default:
		score.Stop = "done"
	}
	s.failed = ErrDone
	return score, nil
}

// place moves character rewards from calls of Episode.Reply to replies of the rollout.
func (s *Session) place(spoken []CharRewards) ([]CharRewards, error) {
	if len(spoken) == 0 {
		return nil, nil
	}
	if len(spoken) > len(s.spoken) {
		return nil, fmt.Errorf("character rewards for %d calls of Reply; there were %d", len(spoken), len(s.spoken))
	}
	placed := make([]CharRewards, len(s.replies))
	for k, c := range spoken {
		placed[s.spoken[k]] = c
	}
	return placed, nil
}

// Close releases what the episode holds. It is safe to call at any time, more than once.
func (s *Session) Close() error {
	c, ok := s.episode.(io.Closer)
	s.episode, s.done = nil, true
	if s.failed == nil {
		s.failed = ErrDone
	}
	if !ok {
		return nil
	}
	return s.guard(c.Close)
}

// guard runs the environment's code and turns a panic into an error.
func (s *Session) guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: string(debug.Stack())}
		}
	}()
	return f()
}
