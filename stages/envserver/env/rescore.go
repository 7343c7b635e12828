package env

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"slices"
	"strings"
)

// Rescorer is an environment that can score a recorded conversation anew, by its present rules and options.
type Rescorer interface {
	// Rescore scores a finished conversation of a task: what the policy saw and said, the prompt included. ended says that
	// the environment ended it; else a limit on the policy did. Messages of several agents say whose they are, and come in the
	// order of time. Character rewards have element k for the k-th reply.
	// [ErrDiverged] says that it is no conversation of this environment.
	Rescore(ctx context.Context, task json.RawMessage, seed int64, messages []Message, ended bool) (Score, error)
}

// ErrDiverged says that an environment would have said something else than what the policy saw: by its present rules and
// options the recorded conversation would have gone another way, and no score of it means anything.
var ErrDiverged = errors.New("the environment answers otherwise than it was recorded")

// Rescore plays a recorded conversation again: it gives a new episode the recorded replies, holds what the policy saw
// before each of them against what the episode says, and asks it for its score. For an environment of which an episode
// costs nothing but arithmetic this is the whole of [Rescorer]. The stop reason is that of the new episode.
func Rescore(ctx context.Context, e Environment, task json.RawMessage, seed int64, messages []Message, ended bool) (score Score, err error) {
	s, err := Begin(ctx, e, task, seed)
	if err != nil {
		return Score{}, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	said := s.Prompt()
	tools, met := len(s.Tools()) > 0, map[string]bool{}
	for at := 0; at < len(messages); {
		shown, told := len(said), false
		if agent := messages[at].Agent; tools && !met[agent] {
			told, met[agent] = true, true // the runner tells of them where an agent's conversation begins
			if messages[at].Role == RoleSystem && (shown == 0 || said[0].Role != RoleSystem) {
				shown++ // in a message of its own
			}
		}
		if at > 0 && !slices.ContainsFunc(messages[at:], func(m Message) bool { return m.Role == RoleAssistant }) {
			break // what follows the last reply nobody saw
		}
		reply := at + shown
		if reply > len(messages) || !seen(messages[at:reply], said, told) || reply < len(messages) && messages[reply].Role != RoleAssistant {
			return Score{}, fmt.Errorf("score %s, reply %d: %w", s.info.Name, s.Turns(), ErrDiverged)
		}
		if reply == len(messages) {
			break // the policy said nothing
		}
		turn, err := s.Reply(ctx, messages[reply])
		if errors.Is(err, ErrDone) {
			return Score{}, fmt.Errorf("score %s, reply %d: %w: it was over before", s.info.Name, s.Turns(), ErrDiverged)
		}
		if err != nil {
			return Score{}, err
		}
		said, at = turn.Messages, reply+1
	}
	if ended && !s.done {
		return Score{}, fmt.Errorf("score %s, reply %d: %w: it goes on", s.info.Name, s.Turns(), ErrDiverged)
	}
	return s.Score(ctx)
}

// ScoreRecorded asks a [Rescorer] for the score of a recorded conversation, for a runner: a panic becomes a [PanicError].
func ScoreRecorded(ctx context.Context, r Rescorer, task json.RawMessage, seed int64, messages []Message, ended bool) (score Score, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &PanicError{Value: v, Stack: string(debug.Stack())}
		}
	}()
	return r.Rescore(ctx, task, seed, messages, ended)
}

// seen reports whether the policy saw what the episode says. At the start of a conversation with tools the runner tells of
// them in the system message; and it answers a call that nobody can read, which the episode gets without a name, in its
// own words.
func seen(shown, said []Message, tools bool) bool {
	if tools && len(shown) == len(said)+1 {
		shown = shown[1:]
	}
	return slices.EqualFunc(shown, said, func(a, b Message) bool {
		switch {
		case a.Role != b.Role || a.Agent != b.Agent || !slices.EqualFunc(a.Images, b.Images, func(i, k Image) bool { return i.Alt == k.Alt }):
			return false
		case a.Role == RoleTool:
			return a.Content == b.Content || strings.HasPrefix(a.Content, "error: ") && strings.HasPrefix(b.Content, "error: ")
		case tools && a.Role == RoleSystem:
			return strings.HasPrefix(a.Content, b.Content)
		}
		return strings.ToValidUTF8(a.Content, "\uFFFD") == strings.ToValidUTF8(b.Content, "\uFFFD")
	})
}
