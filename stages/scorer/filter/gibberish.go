package filter

import (
	"fmt"
	"math"
)

// Gibberish takes a sample with a rare token (byte-pair encoders number them by the order of their merges) that the policy
// itself found less likely than a random one would have been (arXiv:2510.02387 §5.2).
type Gibberish struct {
	// Mode is what happens to the samples it takes: they are dropped, only counted (monitor), or it is off.
	Mode Mode `toml:"mode"`
	// TokenAbove is the id above which tokens are rare.
	TokenAbove int `toml:"token_above"`
	// Offset is how far the log-probability must be below that of a random token, -ln vocab_size.
	Offset float64 `toml:"offset"`
	// VocabSize is the number of tokens of the model.
	VocabSize int `toml:"vocab_size"`
}

// DefaultGibberish is off: only whoever chose the model knows vocab_size.
func DefaultGibberish() Gibberish { return Gibberish{Mode: Off, TokenAbove: 100_000, Offset: 2} }

// Name is gibberish.
func (Gibberish) Name() string { return "gibberish" }

// Does is the mode.
func (f Gibberish) Does() Mode { return f.Mode }

// Validate wants the size of the vocabulary.
func (f Gibberish) Validate() error {
	switch {
	case f.VocabSize < 2:
		return fmt.Errorf("vocab_size = %d: the number of tokens of the model, at least 2", f.VocabSize)
	case f.TokenAbove < 0:
		return fmt.Errorf("token_above = %d: the highest id of a common token, at least 0", f.TokenAbove)
	case math.IsNaN(f.Offset) || math.IsInf(f.Offset, 0):
		return fmt.Errorf("offset = %v: in nats", f.Offset)
	}
	return nil
}

// Takes reports whether a sampled token is rare and was less likely than a random one by the offset.
func (f Gibberish) Takes(s Sample) bool {
	below := -math.Log(float64(f.VocabSize)) - f.Offset
	for _, node := range s.Path {
		for k, m := range node.Mask {
			if m == 1 && int(node.TokenIDs.At(k)) > f.TokenAbove && float64(node.Logprobs.At(k)) < below {
				return true
			}
		}
	}
	return false
}
