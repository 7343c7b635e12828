// Package envtest checks that an environment keeps the contract of package env, whatever its game is: [Run] is for the test of
// every environment, [Play] for tests with players that know the game.
package envtest

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// Player chooses a reply. The conversation ends with what was said to it last; of several agents it is that of the one that speaks,
// which its messages name. tools is empty in environments without.
type Player func(rng *rand.Rand, conversation []env.Message, tools []env.Tool) env.Message

// Play plays a task to its end and scores it. The seed is the environment's and the player's.
func Play(ctx context.Context, e env.Environment, task json.RawMessage, seed int64, player Player) (env.Rollout, error) {
	s, err := env.Begin(ctx, e, task, seed)
	if err != nil {
		return env.Rollout{}, err
	}
	defer s.Close()
	rng := rand.New(rand.NewPCG(uint64(seed), 0))
	r := env.Rollout{Messages: s.Prompt()}
	agent := r.Messages[0].Agent
	for done := false; !done; {
		if limit := e.Info().MaxTurns; s.Turns() >= limit {
			return r, fmt.Errorf("not done after %d turns", limit)
		}
		reply := player(rng, of(agent, r.Messages), s.Tools())
		reply.Role, reply.Agent = env.RoleAssistant, agent
		turn, err := s.Reply(ctx, reply)
		if err != nil {
			return r, err
		}
		r.Replies = append(r.Replies, len(r.Messages))
		r.Messages = append(append(r.Messages, reply), turn.Messages...)
		done, agent = turn.Done, turn.Agent
	}
	if _, err := s.Reply(ctx, env.Assistant("too late")); err != env.ErrDone {
		return r, fmt.Errorf("a reply after the end: %v, want ErrDone", err)
	}
	r.Score, err = s.Score(ctx)
	return r, err
}

// of is an agent's conversation.
func of(agent string, messages []env.Message) (own []env.Message) {
	for _, m := range messages {
		if m.Agent == agent {
			own = append(own, m)
		}
	}
	return own
}

// Mean plays tasks 0 to n-1 of a split, with the index as seed, and returns the mean total reward. Rollouts to which no reward
// applies do not count.
func Mean(ctx context.Context, e env.Environment, split env.Split, n int, player Player) (float64, error) {
	var sum float64
	scored := 0
	for i := range n {
		task, err := e.Task(split, i)
		if err != nil {
			return 0, err
		}
		r, err := Play(ctx, e, task, int64(i), player)
		if err != nil {
			return 0, fmt.Errorf("task %d: %w", i, err)
		}
		if total := r.Score.Rewards.Total(); total != nil {
			sum += *total
			scored++
		}
	}
	return sum / float64(max(scored, 1)), nil
}

// Noise says anything: words, numbers, JSON, broken UTF-8, nothing at all, and tool calls that make no sense.
func Noise(rng *rand.Rand, conversation []env.Message, tools []env.Tool) env.Message {
	texts := []string{"", " ", "a", "0", "hello", "-1", "\x00", "\xff\xfe", "ünï©ode ✓", "{}", `{"a":1}`, "<guess>", "\n\n",
		strings.Repeat("long ", 1000), conversation[len(conversation)-1].Content}
	text := func() string { return texts[rng.IntN(len(texts))] }
	m := env.Assistant(text())
	if rng.IntN(3) > 0 {
		return m
	}
	for range 1 + rng.IntN(3) {
		call := env.ToolCall{ID: text(), Name: text(), Arguments: text()}
		if len(tools) > 0 && rng.IntN(4) > 0 {
			call.Name = tools[rng.IntN(len(tools))].Name
		}
		m.ToolCalls = append(m.ToolCalls, call)
	}
	return m
}

// Script says one text after the other, in each conversation of its own, and the last one ever after.
func Script(texts ...string) Player {
	return func(_ *rand.Rand, conversation []env.Message, _ []env.Tool) env.Message {
		said := 0
		for _, m := range conversation {
			said += int(env.Bool(m.Role == env.RoleAssistant))
		}
		return env.Assistant(texts[min(said, len(texts)-1)])
	}
}

// OneOf replies with one of the texts, at random.
func OneOf(texts ...string) Player {
	return func(rng *rand.Rand, _ []env.Message, _ []env.Tool) env.Message {
		return env.Assistant(texts[rng.IntN(len(texts))])
	}
}
