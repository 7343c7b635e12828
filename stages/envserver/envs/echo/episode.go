package echo

import (
	"context"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// episode is one answer.
type episode struct {
	full   bool
	spaces bool // are part of the texts
	text   string
	answer string
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message {
	if !e.full {
		return []env.Message{env.User(e.text)}
	}
	return []env.Message{env.System("Repeat the user's text exactly. Answer with the text and nothing else."), env.User(e.text)}
}

// Reply implements [env.Episode].
func (e *episode) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	e.answer = reply.Content
	if !e.spaces {
		e.answer = strings.TrimSpace(e.answer)
	}
	return env.Turn{Done: true}, nil
}

// Score implements [env.Episode].
func (e *episode) Score(context.Context) (env.Score, error) {
	return env.Score{
		Rewards: env.Rewards{"positions": env.Value(agreement([]rune(e.answer), []rune(e.text)))},
		Metrics: map[string]float64{"exact": env.Bool(e.answer == e.text)},
	}, nil
}

// agreement is the number of equal positions over the longer length; the text is not empty.
func agreement(answer, text []rune) float64 {
	right := 0
	for i := range min(len(answer), len(text)) {
		right += int(env.Bool(answer[i] == text[i]))
	}
	return float64(right) / float64(max(len(answer), len(text)))
}
