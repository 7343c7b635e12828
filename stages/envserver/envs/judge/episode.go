package judge

import (
	"context"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// episode is one answer.
type episode struct {
	judge  *client
	task   task
	answer string
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message { return []env.Message{env.User(e.task.Prompt)} }

// Reply implements [env.Episode].
func (e *episode) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	e.answer = strings.TrimSpace(strings.ToValidUTF8(reply.Content, "\uFFFD"))
	return env.Turn{Done: true}, nil
}

// Score implements [env.Episode]. Nothing is not shown to the judge.
func (e *episode) Score(ctx context.Context) (env.Score, error) {
	judged := 0.0
	if e.answer != "" {
		var err error
		if judged, err = e.judge.score(ctx, e.question()); err != nil {
			return env.Score{}, err
		}
	}
	return env.Score{
		Rewards: env.Rewards{"judged": env.Value(judged)},
		Metrics: map[string]float64{"length": float64(len(e.answer))},
	}, nil
}

// question is what the judge is asked. What stands in the answer is never a place of the template.
func (e *episode) question() string {
	answer := e.answer
	if most := e.judge.cfg.MaxAnswer; len(answer) > most {
		answer = strings.ToValidUTF8(answer[:most], "") + " [cut]"
	}
	return strings.NewReplacer("{prompt}", e.task.Prompt, "{answer}", answer, "{reference}", e.task.Reference).Replace(e.judge.cfg.Template)
}
