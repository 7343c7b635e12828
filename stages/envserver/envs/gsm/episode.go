package gsm

import (
	"context"
	"math/big"
	"strings"

	"github.com/prl-project/prl/stages/envserver/env"
)

// episode is one answer.
type episode struct {
	cfg      Config
	question string
	truth    *big.Rat
	reply    string
}

// Prompt implements [env.Episode].
func (e *episode) Prompt() []env.Message {
	if e.cfg.Prompt == "compact" {
		return []env.Message{env.User(e.question)}
	}
	return []env.Message{
		env.System("Solve the problem step by step. End with a line that has #### and then nothing but the number that answers it."),
		env.User(e.question),
	}
}

// Reply implements [env.Episode].
func (e *episode) Reply(_ context.Context, reply env.Message) (env.Turn, error) {
	e.reply = reply.Content
	return env.Turn{Done: true}, nil
}

// Score implements [env.Episode].
func (e *episode) Score(context.Context) (env.Score, error) {
	said, ok := answer(e.reply, e.cfg.Strict)
	right := ok && said.Cmp(e.truth) == 0
	return env.Score{
		Rewards: env.Rewards{"right": env.Value(env.Bool(right))},
		Metrics: map[string]float64{"answered": env.Bool(ok), "marked": env.Bool(ok && strings.Contains(e.reply, "####"))},
	}, nil
}
