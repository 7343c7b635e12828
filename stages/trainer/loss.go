package trainer

import (
	"fmt"
	"math"
	"strings"

	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/lm"
)

// Loss components, by their names in MicroBatch.loss_tokens.
const (
	ComponentRL    = "rl"     // policy gradient, over tokens with mask 1
	ComponentCE    = "ce"     // cross-entropy, over tokens with a ce_weight other than 0
	ComponentRefKL = "ref_kl" // divergence from a teacher, over tokens with a ref_kl_weight other than 0
)

// Values of Config.Loss. All of them weigh a token by the ratio ρ of its probability under the trained policy to that
// under the policy that sampled it; they differ in what they do where the two have moved apart.
const (
	LossDPPO = "dppo" // leaves out a token whose probability has changed too far in its advantage's direction
	LossIPO  = "ipo"  // leaves out one whose probability has changed too far in any direction
	LossPPO  = "ppo"  // clips ρ of each token
	LossGSPO = "gspo" // clips the geometric mean of ρ over a sample
	LossTIS  = "tis"  // caps ρ and keeps every token's gradient
)

// A lossSetting is a setting of [trainer] that one value of loss reads.
type lossSetting struct {
	key, loss string
	value     func(*Config) *float64
	min, max  float64
}

var lossSettings = []lossSetting{
	{"dppo_mask_high", LossDPPO, func(c *Config) *float64 { return &c.DPPOMaskHigh }, 0, 1},
	{"dppo_mask_low", LossDPPO, func(c *Config) *float64 { return &c.DPPOMaskLow }, 0, 1},
	{"ipo_mask", LossIPO, func(c *Config) *float64 { return &c.IPOMask }, 0, 1},
	{"ppo_clip_low", LossPPO, func(c *Config) *float64 { return &c.PPOClipLow }, 0, 1},
	{"ppo_clip_high", LossPPO, func(c *Config) *float64 { return &c.PPOClipHigh }, 0, math.MaxFloat32},
	{"gspo_clip_low", LossGSPO, func(c *Config) *float64 { return &c.GSPOClipLow }, 0, 1},
	{"gspo_clip_high", LossGSPO, func(c *Config) *float64 { return &c.GSPOClipHigh }, 0, math.MaxFloat32},
	{"tis_cap", LossTIS, func(c *Config) *float64 { return &c.TISCap }, math.SmallestNonzeroFloat32, math.MaxFloat32},
}

// checkLoss refuses an unknown loss, bounds out of range, and bounds that the loss chosen would not read.
func (c Config) checkLoss() error {
	losses := []string{LossDPPO, LossIPO, LossPPO, LossGSPO, LossTIS}
	if c.policy() == nil {
		return fmt.Errorf("trainer.loss = %q: %s", c.Loss, strings.Join(losses, ", "))
	}
	d := DefaultConfig()
	for _, s := range lossSettings {
		switch v := *s.value(&c); {
		case !(v >= s.min && v <= s.max): // NaN fails
			return fmt.Errorf("trainer.%s = %g: from %.3g to %.3g", s.key, v, s.min, s.max)
		case s.loss != c.Loss && v != *s.value(&d):
			return fmt.Errorf("trainer.%s = %g: a setting of trainer.loss = %q, and trainer.loss is %q: leave it out, or choose that loss", s.key, v, s.loss, c.Loss)
		}
	}
	return nil
}

// policy is the policy term of the loss; nil where the loss is unknown.
func (c Config) policy() lm.Policy {
	switch c.Loss {
	case LossDPPO:
		return lm.DPPO{MaskHigh: c.DPPOMaskHigh, MaskLow: c.DPPOMaskLow}
	case LossIPO:
		return lm.IPO{Mask: c.IPOMask}
	case LossPPO:
		return lm.PPO{ClipLow: c.PPOClipLow, ClipHigh: c.PPOClipHigh}
	case LossGSPO:
		return lm.GSPO{ClipLow: c.GSPOClipLow, ClipHigh: c.GSPOClipHigh}
	case LossTIS:
		return lm.TIS{Cap: c.TISCap}
	}
	return nil
}

// lossTokens are the numbers of tokens by which the components of a step's loss are divided, over all ranks.
type lossTokens struct{ rl, ce, refKL int }

func lossTokensOf(m *schemas.MicroBatch) (t lossTokens, err error) {
	for _, l := range m.LossTokens {
		switch l.Component {
		case ComponentRL:
			t.rl = int(l.Tokens)
		case ComponentCE:
			t.ce = int(l.Tokens)
		case ComponentRefKL:
			t.refKL = int(l.Tokens)
		default:
			return t, fmt.Errorf("loss component %q is not one that this learner knows (%s, %s, %s)", l.Component, ComponentRL, ComponentCE, ComponentRefKL)
		}
	}
	return t, nil
}

// components are the loss of a step in which the entropy bonus weighs entropyCoef.
func (c Config) components(t lossTokens, entropyCoef float64) []lm.Component {
	return []lm.Component{
		lm.RL{Policy: c.policy(), KLTau: c.KLTau, EntropyCoef: entropyCoef, Tokens: t.rl},
		lm.CE{Tokens: t.ce},
		lm.RefKL{MaskLow: c.RefKLMaskLow, KLTau: c.KLTau, Tokens: t.refKL},
	}
}

// values are the figures of a step; those of a component only where it has tokens.
func values(m lm.Metrics) map[string]float64 {
	v := map[string]float64{"loss": m.Loss(), "tokens": float64(m.Tokens)}
	if m.Sampled > 0 {
		v["entropy"], v["nll"] = m.MeanEntropy(), m.MeanNLL()
	}
	if m.RLTokens > 0 {
		v["loss_rl"], v["ratio"], v["kl"], v["masked"] = m.RLLoss, m.MeanRatio(), m.MeanMismatchKL(), m.MaskedShare()
	}
	if m.CETokens > 0 {
		v["loss_ce"], v["nll_ce"], v["tokens_ce"] = m.CELoss, m.MeanCENLL(), float64(m.CETokens)
	}
	if m.RefKLTokens > 0 {
		v["loss_ref_kl"], v["kl_teacher"], v["tokens_ref_kl"] = m.RefKLLoss, m.MeanTeacherKL(), float64(m.RefKLTokens)
	}
	return v
}
