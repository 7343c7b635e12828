package tooluse

import (
	"context"

	"github.com/prl-project/prl/stages/envserver/env"
)

// episode is one conversation with a customer.
type episode struct {
	cfg     Config
	task    task
	shop    shop // as it is now
	want    shop // as it should be in the end
	calls   int  // that reached a tool
	refused int  // of these
	said    bool // that it is done
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message {
	return []env.Message{
		env.System("You serve a customer of a shop. Do what the customer asks with the tools, exactly that and nothing else; ids must be " +
			"looked up. When all is done, answer without calling a tool."),
		env.User(e.task.Request),
	}
}

// Reply implements [env.Episode]: an answer without a call is the last.
func (e *episode) Reply(context.Context, env.Message) (env.Turn, error) {
	e.said = true
	return env.Turn{Done: true}, nil
}

// Done implements [env.Finisher].
func (e *episode) Done() bool { return e.calls >= e.cfg.MaxCalls }

// Score implements [env.Episode].
func (e *episode) Score(context.Context) (env.Score, error) {
	met := 0.0
	for _, g := range e.task.Goals {
		met += env.Bool(g.met(&e.shop, &e.want))
	}
	right := same(&e.shop, &e.want)
	s := env.Score{
		Rewards: env.Rewards{
			"state": env.Weighted(env.Bool(right), e.cfg.Weights.State),
			"goals": env.Weighted(met/float64(len(e.task.Goals)), e.cfg.Weights.Goals),
		},
		Metrics: map[string]float64{
			"calls": float64(e.calls), "refused": float64(e.refused), "finished": env.Bool(e.said),
		},
	}
	switch {
	case right:
		s.Stop = "right"
	case e.said:
		s.Stop = "wrong"
	case e.Done():
		s.Stop = "max_calls"
	}
	return s, nil
}
