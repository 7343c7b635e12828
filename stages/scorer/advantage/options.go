package advantage

import (
	"fmt"
	"math"
)

// Options are the settings of the algorithms; each takes those that concern it.
type Options struct {
	// NormalizeStd divides by the standard deviation of what was compared: grpo, hierarchical_grpo, echo.
	NormalizeStd bool `toml:"normalize_std"`
	// LengthPenalty takes from the rewards of long rollouts: grpo, echo.
	LengthPenalty LengthPenalty `toml:"length_penalty"`
	// RAEDecay is the share of the moving average that a new reward leaves standing: rae.
	RAEDecay float64 `toml:"rae_decay"`
	// EpisodeAgents are compared within one episode: hierarchical_grpo.
	EpisodeAgents []string `toml:"episode_agents"`
	// EchoAlpha weighs the cross-entropy of what the environment answered: echo.
	EchoAlpha float64 `toml:"echo_alpha"`
	// EchoRoles are the roles of the messages that are such answers: echo.
	EchoRoles []string `toml:"echo_roles"`
	// RefKL weighs the divergence from the environment's teacher beside the policy gradient; 0 for none.
	RefKL float64 `toml:"ref_kl"`
}

// A LengthPenalty is in shares of the group's mean reward, for the longest member of the group.
type LengthPenalty struct {
	// On switches the penalty on.
	On bool `toml:"on"`
	// Output is the share that the sampled tokens cost.
	Output float64 `toml:"output"`
	// Input is the share that all other tokens cost.
	Input float64 `toml:"input"`
	// Turns is the share that the replies cost.
	Turns float64 `toml:"turns"`
}

// DefaultOptions are those of the sources.
func DefaultOptions() Options {
	return Options{
		LengthPenalty: LengthPenalty{Output: 0.25, Input: 0.1, Turns: 0.1},
		RAEDecay:      0.95, EpisodeAgents: []string{"solver"}, EchoAlpha: 0.1, EchoRoles: []string{"tool"},
	}
}

func (o Options) validate(name string, k kind) error {
	p := o.LengthPenalty
	switch {
	case o.NormalizeStd && !k.normalize:
		return fmt.Errorf("normalize_std = true: %s does not divide by the standard deviation; set it to false", name)
	case p.On && !k.penalty:
		return fmt.Errorf("length_penalty.on = true: %s has no length penalty; set it to false", name)
	case !weight(p.Output) || !weight(p.Input) || !weight(p.Turns):
		return fmt.Errorf("length_penalty = %v, %v, %v for output, input and turns: 0 for none, or more", p.Output, p.Input, p.Turns)
	case !(o.RAEDecay >= 0 && o.RAEDecay < 1):
		return fmt.Errorf("rae_decay = %v: at least 0, below 1", o.RAEDecay)
	case !weight(o.EchoAlpha) || float32(o.EchoAlpha) == 0:
		return fmt.Errorf("echo_alpha = %v: above 0", o.EchoAlpha)
	case len(o.EchoRoles) == 0:
		return fmt.Errorf("echo_roles is empty: roles of messages, such as tool")
	case !weight(o.RefKL):
		return fmt.Errorf("ref_kl = %v: 0 for none, or more", o.RefKL)
	case o.RefKL > 0 && !k.gradient:
		return fmt.Errorf("ref_kl = %v: %s has no policy gradient for it to stand beside; set it to 0", o.RefKL, name)
	}
	return nil
}

// weight reports whether v can weigh a loss: not negative, and finite as a float32.
func weight(v float64) bool { return v >= 0 && v <= math.MaxFloat32 }
