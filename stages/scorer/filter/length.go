package filter

import "fmt"

// Length takes a sample in which the policy sampled too few or too many tokens.
type Length struct {
	// Mode is what happens to the samples it takes: they are dropped, only counted (monitor), or it is off.
	Mode Mode `toml:"mode"`
	// MinTokens is the least that may be sampled; 0 for no limit.
	MinTokens int `toml:"min_tokens"`
	// MaxTokens is the most; 0 for no limit.
	MaxTokens int `toml:"max_tokens"`
}

// DefaultLength is off: it has no limits.
func DefaultLength() Length { return Length{Mode: Off} }

// Name is length.
func (Length) Name() string { return "length" }

// Does is the mode.
func (f Length) Does() Mode { return f.Mode }

// Validate wants a limit, and none that takes everything.
func (f Length) Validate() error {
	switch {
	case f.MinTokens < 0:
		return fmt.Errorf("min_tokens = %d: 0 for no limit, or more", f.MinTokens)
	case f.MaxTokens < 0:
		return fmt.Errorf("max_tokens = %d: 0 for no limit, or more", f.MaxTokens)
	case f.MinTokens == 0 && f.MaxTokens == 0:
		return fmt.Errorf("mode = %q: set min_tokens or max_tokens", f.Mode)
	case f.MaxTokens > 0 && f.MinTokens > f.MaxTokens:
		return fmt.Errorf("min_tokens = %d is above max_tokens = %d: nothing would be left", f.MinTokens, f.MaxTokens)
	}
	return nil
}

// Takes reports whether the number of sampled tokens of the branch is outside the limits.
func (f Length) Takes(s Sample) bool {
	n := s.sampled()
	return n < f.MinTokens || f.MaxTokens > 0 && n > f.MaxTokens
}
