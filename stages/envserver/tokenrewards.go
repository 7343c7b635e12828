package envserver

import (
	"bytes"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// TokenRewards gives the function that spreads the rewards of a recorded reply's characters over the tokens of its node,
// as it is done while a rollout is played. tokenizer is the tokenizer.json of the policy that sampled them.
func TokenRewards(tokenizer []byte) (func(reply *schemas.Node, rewards env.CharRewards) (schemas.Float32s, error), error) {
	renderer, err := parseTokenizer(tokenizer)
	if err != nil {
		return nil, err
	}
	return func(n *schemas.Node, rewards env.CharRewards) (schemas.Float32s, error) {
		if len(rewards) == 0 {
			return nil, nil
		}
		r := reply{opening: max(0, bytes.IndexByte(n.Mask, 1)), content: n.Content}
		r.tokens = n.TokenIDs.Values()[r.opening:]
		r.ended = len(r.tokens) > 0 && r.tokens[len(r.tokens)-1] == renderer.EOS()
		return r.reward(renderer, rewards)
	}, nil
}
