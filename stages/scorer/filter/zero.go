package filter

// ZeroAdvantage takes a sample that would not move the policy: every advantage is zero, and so is every weight of another
// loss.
//
// It is the one rule on such samples. A sample without a token in any loss is never sent, whatever this filter does.
type ZeroAdvantage struct {
	// Mode is what happens to the samples it takes: they are dropped, only counted (monitor), or it is off.
	Mode Mode `toml:"mode"`
}

// DefaultZeroAdvantage drops.
func DefaultZeroAdvantage() ZeroAdvantage { return ZeroAdvantage{Drop} }

// Name is zero_advantage.
func (ZeroAdvantage) Name() string { return "zero_advantage" }

// Does is the mode.
func (f ZeroAdvantage) Does() Mode { return f.Mode }

// Validate finds nothing: there are no parameters.
func (ZeroAdvantage) Validate() error { return nil }

// Takes reports whether everything that weighs is zero.
func (ZeroAdvantage) Takes(s Sample) bool {
	return s.Advantages.Zero() && s.CeWeights.Zero() && s.RefKlWeights.Zero()
}
