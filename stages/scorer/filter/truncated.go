package filter

// Truncated takes the samples of rollouts that a limit on the policy ended (overlong filtering, arXiv:2503.14476 §3.4).
type Truncated struct {
	// Mode is what happens to the samples it takes: they are dropped, only counted (monitor), or it is off.
	Mode Mode `toml:"mode"`
}

// DefaultTruncated is off: outcomes say of each rollout whether it was truncated.
func DefaultTruncated() Truncated { return Truncated{Off} }

// Name is truncated.
func (Truncated) Name() string { return "truncated" }

// Does is the mode.
func (f Truncated) Does() Mode { return f.Mode }

// Validate finds nothing: there are no parameters.
func (Truncated) Validate() error { return nil }

// Takes reports whether the rollout was truncated.
func (Truncated) Takes(s Sample) bool { return s.Trace.Truncated }
