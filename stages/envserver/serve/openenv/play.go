package openenv

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/serve"
)

// resetArgs are what a reset reads; whatever else a client sends is ignored, as in the original.
type resetArgs struct {
	Seed      *int64  `json:"seed"`
	EpisodeID *string `json:"episode_id"`
	Split     *string `json:"split"`
	Index     *int64  `json:"index"`
}

// maxEpisodeID is how long the original lets an episode's id be, in characters.
const maxEpisodeID = 255

// readReset reads the arguments of a reset. Its errors are the client's.
func readReset(data json.RawMessage) (resetArgs, error) {
	var args resetArgs
	if len(data) == 0 {
		return args, nil
	}
	if err := decode(data, &args); err != nil {
		return args, err
	}
	if args.EpisodeID != nil && len([]rune(*args.EpisodeID)) > maxEpisodeID {
		return args, invalid("string_too_long", "episode_id", "String should have at most 255 characters")
	}
	return args, nil
}

// result is what the client gets of a reset or a step.
type result struct {
	Observation map[string]any `json:"observation"`
	Reward      *float64       `json:"reward"`
	Done        bool           `json:"done"`
	Metadata    map[string]any `json:"metadata,omitempty"`
}

// reset begins an episode. The one before it is over.
func (s *Server) resetSession(ctx context.Context, session *session, args resetArgs) (result, error) {
	c, err := s.Choose(serve.Pick{Split: args.Split, Index: args.Index, Seed: args.Seed})
	var bad *serve.BadPick
	if errors.As(err, &bad) {
		return result{}, invalid("value_error", bad.Field, "%s", bad.Message)
	}
	if err != nil {
		return result{}, err
	}
	session.drop()
	episode, err := s.Begin(ctx, c, nil)
	if err != nil {
		return result{}, err
	}
	id := rand.Text()
	if args.EpisodeID != nil {
		id = *args.EpisodeID
	}
	session.episode, session.chosen, session.tools = episode, c, episode.Tools()
	session.state = state{EpisodeID: &id, Episode: &played{s.info.Name, s.info.Version, c.Split, c.Index, c.Seed, false}}
	return session.shown(episode.Prompt(), nil), nil
}

// drop lets go of the episode.
func (s *session) drop() {
	if s.episode != nil {
		s.episode.Close()
	}
	s.episode, s.state = nil, state{}
}

// errOver is a step behind the end of an episode.
var errOver = errors.New("the episode is done: reset the environment")

// act takes an action of the policy.
func (s *Server) act(ctx context.Context, session *session, a action) (result, error) {
	if a.kind == listTools {
		return result{Observation: map[string]any{"tools": toolList(s.toolsOf(session), "input_schema"), "metadata": map[string]any{}}}, nil
	}
	// As in the original an environment that was not reset is as it was made.
	if session.state.Episode == nil {
		if _, err := s.resetSession(ctx, session, resetArgs{}); err != nil {
			return result{}, err
		}
	}
	if session.state.Episode.Done {
		return result{}, errOver
	}
	var turn env.Turn
	var err error
	if a.kind == finish {
		turn.Done = true
	} else {
		turn, err = session.episode.Reply(ctx, a.message)
	}
	var score *env.Score
	if err == nil && turn.Done {
		var ended env.Score
		ended, err = session.episode.Score(ctx)
		score = &ended
	}
	if err != nil {
		// No reward is made of it; the client may begin anew.
		session.episode.Close()
		session.state.Episode.Done = true
		return result{}, err
	}
	session.state.StepCount++
	session.state.Episode.Done = turn.Done
	var r result
	if a.kind == callTool {
		r = session.called(a.message.ToolCalls[0].Name, turn.Messages, score)
	} else {
		r = session.shown(turn.Messages, score)
	}
	if turn.Agent != "" {
		r.Metadata["agent"] = turn.Agent
	}
	if score != nil {
		r.Metadata["truncated"] = turn.Truncated
		session.episode.Close()
	}
	return r, nil
}

// toolsOf are the tools of a session's episode, or before there is one those of the first task's.
func (s *Server) toolsOf(session *session) []env.Tool {
	if session != nil && session.state.Episode != nil {
		return session.tools
	}
	return s.tools
}

// shown is an observation of messages.
func (s *session) shown(messages []env.Message, score *env.Score) result {
	if messages == nil {
		messages = []env.Message{}
	}
	return s.observed(map[string]any{"messages": messages, "prompt": text(messages)}, score)
}

// called is the observation of a tool's call. What the model did wrong has the original's types of errors; what a tool
// refuses in its own words is its result.
func (s *session) called(tool string, messages []env.Message, score *env.Score) result {
	said := text(messages)
	observation := map[string]any{"tool_name": tool, "result": nil, "error": nil}
	if kind, message := s.fault(tool, said); kind != "" {
		observation["error"] = map[string]string{"error_type": kind, "message": message}
	} else {
		observation["result"] = toolResult(messages)
	}
	return s.observed(observation, score)
}

// fault is what was wrong with a call, by the answer that it got; empty where the tool was run.
func (s *session) fault(tool, said string) (kind, message string) {
	known := false
	for _, t := range s.tools {
		known = known || t.Name == tool
	}
	switch message, refused := strings.CutPrefix(said, refusal); {
	case !known:
		return "tool_not_found", message
	case refused && strings.HasPrefix(message, "arguments of "+tool+": "):
		return "invalid_args", message
	}
	return "", ""
}

// refusal begins the answers of env.Call that say what was wrong.
const refusal = "error: "

func (s *session) observed(observation map[string]any, score *env.Score) result {
	r := result{Observation: observation, Metadata: map[string]any{"split": s.chosen.Split, "index": s.chosen.Index, "seed": s.chosen.Seed}}
	if score != nil {
		r.Done, r.Reward = true, score.Rewards.Total()
		rewards, weights := components(score.Rewards)
		r.Metadata["rewards"], r.Metadata["weights"] = rewards, weights
		r.Metadata["metrics"], r.Metadata["stop_reason"] = score.Metrics, score.Stop
		if score.Metrics == nil {
			r.Metadata["metrics"] = map[string]float64{}
		}
		if len(score.Agents) > 0 {
			agents := map[string]any{}
			for name, own := range score.Agents {
				agents[name] = own.Total()
			}
			r.Metadata["agents"] = agents
		}
	}
	observation["metadata"] = r.Metadata // in both places, as the original has it
	return r
}

func components(rewards env.Rewards) (values map[string]*float64, weights map[string]float64) {
	values, weights = map[string]*float64{}, map[string]float64{}
	for name, r := range rewards {
		values[name], weights[name] = r.Value, r.Weight
	}
	return values, weights
}

// text is what messages say, one below the other; an image without a text in its place is in the messages alone.
func text(messages []env.Message) string {
	var said []string
	for _, m := range messages {
		t, err := m.Text()
		if err != nil {
			t = m.Content
		}
		said = append(said, t)
	}
	return strings.Join(said, "\n\n")
}
