package board

// Config is the section [board].
type Config struct {
	// Enabled makes the event files part of --stage all.
	Enabled bool `toml:"enabled"`
	// Dir is the folder of the event files; empty for the folder board of the run.
	Dir string `toml:"dir"`
}

// DefaultConfig writes none.
func DefaultConfig() Config { return Config{} }
