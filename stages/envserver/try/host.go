package try

import (
	"context"
	"fmt"
	"time"

	"github.com/prl-project/prl/stages/envserver/env"
)

// host lets an environment that plays whole rollouts itself ask the server, and takes its word for all that is printed: there
// is nobody between them who counts tokens, tries calls again or keeps the limits of a run. It may take as long as one call of
// an environment beyond the deadline.
func (r *Run) host(ctx context.Context, h env.Host, g game, res *Result, deadline time.Time) (fault string, _ error) {
	key, err := r.server.Token()
	if err != nil {
		return faultModel, err
	}
	ctx, cancel := context.WithDeadlineCause(ctx, deadline.Add(r.Limits.Env), fmt.Errorf("the rollout has not ended in %v after its time was over", r.Limits.Env))
	defer cancel()
	out, err := env.RunHost(ctx, h, env.Job{
		Task: g.task, Split: g.split, Index: g.index, Seed: g.seed,
		Model: env.Endpoint{
			BaseURL: r.client.base, Model: r.server.Model, Key: key, KeyVar: r.server.TokenEnv,
			Temperature: r.Sampling.Temperature, TopP: 1, MaxTokens: r.Sampling.MaxTokens, MaxContext: r.Sampling.MaxRolloutTokens,
		},
	})
	for _, m := range out.Messages {
		res.Messages = append(res.Messages, Message{Message: m})
		if m.Role == env.RoleAssistant {
			res.Replies++
		}
	}
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
	}
	if err != nil {
		return faultEnvironment, err
	}
	res.take(out.Score)
	res.Truncated, res.Info = out.Truncated, out.Info
	return "", nil
}
