package env

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime/debug"
)

// ScoreGroup asks a [GroupScorer] for the scores of a whole group, for a runner: a panic becomes a [PanicError], and a wrong
// number of scores or one that cannot be recorded is an error. An empty stop reason stays that of the rollout's own score.
func ScoreGroup(ctx context.Context, g GroupScorer, task json.RawMessage, group []Rollout) (scores []Score, err error) {
	defer func() {
		if v := recover(); v != nil {
			scores, err = nil, &PanicError{Value: v, Stack: string(debug.Stack())}
		}
	}()
	scores, err = g.ScoreGroup(ctx, task, group)
	if err != nil {
		return nil, fmt.Errorf("score group: %w", err)
	}
	if len(scores) != len(group) {
		return nil, fmt.Errorf("score group: %d scores for %d rollouts", len(scores), len(group))
	}
	for i := range scores {
		if err := scores[i].Check(group[i].replies()); err != nil {
			return nil, fmt.Errorf("score group: rollout %d: %w", i, err)
		}
		if scores[i].Stop == "" {
			scores[i].Stop = group[i].Score.Stop
		}
	}
	return scores, nil
}

// replies are the contents of what the policy said.
func (r Rollout) replies() []string {
	var replies []string
	for _, i := range r.Replies {
		replies = append(replies, r.Messages[i].Content)
	}
	return replies
}
