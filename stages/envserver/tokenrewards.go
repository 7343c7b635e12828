package envserver

import (
	"bytes"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/inference/render"
)

// TokenRewards gives the function that spreads the rewards of a recorded reply's characters over the tokens of its node,
// as it is done while a rollout is played. renderer is the run's, tokenizer the tokenizer.json of the policy that sampled
// them.
func TokenRewards(renderer string, tokenizer []byte) (func(reply *schemas.Node, rewards env.CharRewards) (schemas.Float32s, error), error) {
	speech, err := render.New(renderer, tokenizer)
	if err != nil {
		return nil, err
	}
	return func(n *schemas.Node, rewards env.CharRewards) (schemas.Float32s, error) {
		if len(rewards) == 0 {
			return nil, nil
		}
		r := reply{opening: max(0, bytes.IndexByte(n.Mask, 1))}
		r.tokens = n.TokenIDs.Values()[r.opening:]
		r.said = speech.Parse(r.tokens, len(n.ToolCalls) > 0) // without calls it makes no difference
		return r.reward(speech, rewards)
	}, nil
}
