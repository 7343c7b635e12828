package packer

import (
	"bytes"
	"encoding/binary"

	"github.com/prl-project/prl/schemas"
)

// Loss components, in the order in which MicroBatch.loss_tokens names them.
const (
	componentRL    = "rl"     // tokens with mask 1
	componentCE    = "ce"     // tokens with a ce_weight other than 0
	componentRefKL = "ref_kl" // tokens with a ref_kl_weight other than 0
)

// lossTokens counts tokens by component, and those in any of them.
type lossTokens struct{ rl, ce, refKL, any int64 }

func countLoss(mask schemas.Uint8s, ce, refKL schemas.Float32s) (t lossTokens) {
	if len(ce) == 0 && len(refKL) == 0 {
		rl := int64(len(mask) - bytes.Count(mask, []byte{0}))
		return lossTokens{rl: rl, any: rl}
	}
	for i := range mask {
		inRL, inCE, inRefKL := one(mask[i] != 0), one(nonzero(ce, i)), one(nonzero(refKL, i))
		t.rl += inRL
		t.ce += inCE
		t.refKL += inRefKL
		t.any += inRL | inCE | inRefKL
	}
	return t
}

// nonzero reports whether weight i of a tensor, which may be left out, is other than 0. It looks at the bits: all but the
// sign, since -0 is 0.
func nonzero(weights schemas.Float32s, i int) bool {
	return len(weights) > 0 && binary.LittleEndian.Uint32(weights[4*i:])<<1 != 0
}

func one(in bool) int64 {
	if in {
		return 1
	}
	return 0
}

func lossTokensOf(s *schemas.Sample) lossTokens {
	return countLoss(s.Mask, s.CeWeights, s.RefKlWeights)
}

func (t *lossTokens) add(o lossTokens) {
	t.rl += o.rl
	t.ce += o.ce
	t.refKL += o.refKL
	t.any += o.any
}

// record lists the components of a step: rl always, the others where they have tokens.
func (t lossTokens) record() []schemas.LossTokens {
	list := []schemas.LossTokens{{Component: componentRL, Tokens: t.rl}}
	if t.ce > 0 {
		list = append(list, schemas.LossTokens{Component: componentCE, Tokens: t.ce})
	}
	if t.refKL > 0 {
		list = append(list, schemas.LossTokens{Component: componentRefKL, Tokens: t.refKL})
	}
	return list
}

// sound reports whether the tensors of a sample fit together, and no loss has its first token, which nothing predicts.
func sound(s *schemas.Sample) bool {
	n := s.TokenIDs.Len()
	optional := func(t schemas.Float32s) bool { return t.Len() == 0 || t.Len() == n }
	return n > 0 && len(s.Mask) == n && s.Logprobs.Len() == n && s.Advantages.Len() == n && s.Temperatures.Len() == n &&
		optional(s.CeWeights) && optional(s.RefKlWeights) && s.RefLogprobs.Len() == s.RefKlWeights.Len() &&
		s.Mask[0] == 0 && !nonzero(s.CeWeights, 0) && !nonzero(s.RefKlWeights, 0)
}
