package envserver

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference/render"
)

// demonstration is what the policy that teaches itself is shown of a task, as a system message.
func (p *player) demonstration(ctx context.Context, e *episode, task json.RawMessage, seed int64) ([]int32, error) {
	text, err := do(ctx, e, "demonstrate", func(context.Context) (string, error) {
		return p.environment.(env.Demonstrator).Demonstrate(task, seed)
	})
	var tokens []int32
	if err == nil {
		var shown []render.Rendered
		shown, err = p.renderer.Begin([]render.Message{{Role: string(env.RoleSystem), Content: valid(text)}}, nil)
		for _, m := range shown {
			tokens = append(tokens, m.Tokens...)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("demonstration: %w", err)
	}
	return tokens, nil
}

// mostDemonstrations is how many tasks are looked at before the first is played: a fair sample (env.Info).
const mostDemonstrations = 1000

// checkDemonstrations holds demonstrations to the room that the longest rollout leaves them; one that does not fit is fatal.
func (p *player) checkDemonstrations(ctx context.Context) error {
	if p.teacher.Policy != schemas.TeacherSelf {
		return nil
	}
	e := p.newEpisode()
	defer e.close()
	for i := range min(p.info.Train, mostDemonstrations) {
		task, err := do(ctx, e, "task", func(context.Context) (json.RawMessage, error) { return p.environment.Task(env.Train, i) })
		if err != nil {
			return fmt.Errorf("envs.%s: task %d: %w", p.info.Name, i, err)
		}
		tokens, err := p.demonstration(ctx, e, task, int64(i))
		if err != nil {
			return fmt.Errorf("envs.%s: task %d: %w", p.info.Name, i, err)
		}
		if len(tokens) > p.teacher.Room {
			return pipeline.Fatal("envs.%s.teacher = %q: the demonstration of task %d has %d tokens, and the longest rollout leaves %d of the model's positions: lower envs.%[1]s.max_rollout_tokens, or raise model.max_position",
				p.info.Name, schemas.TeacherSelf, i, len(tokens), p.teacher.Room)
		}
	}
	return nil
}
