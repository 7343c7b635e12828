package env

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// meet checks who plays an episode that has begun, and addresses the prompt.
func (s *Session) meet() error {
	if m, ok := s.episode.(MultiAgent); ok {
		s.agents = slices.Clone(m.Agents())
		if len(s.agents) == 0 {
			return errors.New("an episode with several agents names none")
		}
		for i, agent := range s.agents {
			if agent == "" || strings.Contains(agent, "/") || slices.Contains(s.agents[:i], agent) {
				return fmt.Errorf("agents %q: want names that differ, not empty and without a slash", s.agents)
			}
		}
		s.agent = s.agents[0]
		s.met = map[string]bool{s.agent: true}
	}
	return s.address(s.prompt)
}

// pass gives the word to the agent that speaks next, with its prompt if it has none yet.
func (s *Session) pass(turn *Turn) error {
	switch {
	case turn.Agent == "":
	case !slices.Contains(s.agents, turn.Agent):
		return fmt.Errorf("agent %q is to speak next; the agents are %q", turn.Agent, s.agents)
	default:
		s.agent = turn.Agent
	}
	turn.Agent = s.agent
	if !turn.Done && s.agent != "" && !s.met[s.agent] {
		s.met[s.agent] = true
		turn.Messages = slices.Concat(s.episode.(MultiAgent).PromptOf(s.agent), turn.Messages)
	}
	if !turn.Done && len(turn.Messages) == 0 {
		return errors.New("the episode goes on without a message")
	}
	turn.Messages = slices.Clone(turn.Messages)
	return s.address(turn.Messages)
}

// address says of messages whose they are, and checks what they show.
func (s *Session) address(messages []Message) error {
	for i := range messages {
		messages[i].Agent = s.agent
		for _, image := range messages[i].Images {
			if err := image.Check(); err != nil {
				return fmt.Errorf("message %d: %w", i, err)
			}
		}
	}
	return nil
}

// known returns an error if there are rewards of an agent that does not play.
func (s *Session) known(rewards map[string]Rewards) error {
	for agent := range rewards {
		if !slices.Contains(s.agents, agent) {
			return fmt.Errorf("rewards of agent %q; the agents are %q", agent, s.agents)
		}
	}
	return nil
}
