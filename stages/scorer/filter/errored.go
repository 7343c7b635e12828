package filter

// Errored takes the samples of a group of which rollouts failed. There are such only under partial = "train".
type Errored struct {
	// Mode is what happens to the samples it takes: they are dropped, only counted (monitor), or it is off.
	Mode Mode `toml:"mode"`
}

// DefaultErrored counts what is trained of partial groups.
func DefaultErrored() Errored { return Errored{Monitor} }

// Name is errored.
func (Errored) Name() string { return "errored" }

// Does is the mode.
func (f Errored) Does() Mode { return f.Mode }

// Validate finds nothing: there are no parameters.
func (Errored) Validate() error { return nil }

// Takes reports whether a rollout of the group failed.
func (Errored) Takes(s Sample) bool { return s.Failed > 0 }
