package filter

import (
	"fmt"
	"math"
)

// Repetition takes a sample with a long stretch in which the policy was nearly certain of every token it sampled, as one
// is that goes in circles (arXiv:2506.13585 §3.2). Tokens that were not sampled are passed over.
type Repetition struct {
	// Mode is what happens to the samples it takes: they are dropped, only counted (monitor), or it is off.
	Mode Mode `toml:"mode"`
	// Window is the number of tokens in a row.
	Window int `toml:"window"`
	// Probability is what each of them must be above.
	Probability float64 `toml:"probability"`
}

// DefaultRepetition counts: it needs no parameter, and nothing else tells of it.
func DefaultRepetition() Repetition {
	return Repetition{Mode: Monitor, Window: 3000, Probability: 0.99}
}

// Name is repetition.
func (Repetition) Name() string { return "repetition" }

// Does is the mode.
func (f Repetition) Does() Mode { return f.Mode }

// Validate checks the window and the probability.
func (f Repetition) Validate() error {
	switch {
	case f.Window < 1:
		return fmt.Errorf("window = %d: at least 1", f.Window)
	case !(f.Probability > 0 && f.Probability < 1):
		return fmt.Errorf("probability = %v: between 0 and 1", f.Probability)
	}
	return nil
}

// Takes reports whether the branch has such a stretch.
func (f Repetition) Takes(s Sample) bool {
	if s.sampled() < f.Window {
		return false
	}
	above, streak := math.Log(f.Probability), 0
	for _, node := range s.Path {
		for k, m := range node.Mask {
			switch {
			case m == 0:
			case float64(node.Logprobs.At(k)) > above:
				if streak++; streak == f.Window {
					return true
				}
			default:
				streak = 0
			}
		}
	}
	return false
}
