package packer

import (
	"fmt"
)

// An Overlong says what happens to a group with a sample that is longer than run.seq_len.
type Overlong string

const (
	// OverlongDrop ends the whole group as overlong: without the longest rollouts the others' advantages would lean
	// towards short ones.
	OverlongDrop Overlong = "drop"
	// OverlongCut keeps the first seq_len tokens of each sample.
	OverlongCut Overlong = "cut"
	// OverlongError stops the run.
	OverlongError Overlong = "error"
)

// Config is the section [packer].
type Config struct {
	// Overlong: drop, cut or error.
	Overlong Overlong `toml:"overlong"`
	// ZeroOutputBatches is the number of batches' worth of rollouts that may end without a sample, one after the other,
	// before the run stops.
	ZeroOutputBatches int `toml:"zero_output_batches"`
	// MaxWaves is the number of waves of one step in ordered mode after which it is cut with what there is.
	MaxWaves int `toml:"max_waves"`
	// FlopsLinear and FlopsQuadratic estimate what a sample of n tokens costs: linear·n + quadratic·n². Only their ratio
	// matters. For a decoder, per token of the forward pass:
	// linear = layers·(2·h·(q + k + v widths) + 2·h² + 6·h·ffn) + 2·h·vocabulary; quadratic = layers·2·heads·head_dim.
	FlopsLinear    int64 `toml:"flops_linear"`
	FlopsQuadratic int64 `toml:"flops_quadratic"`
}

// DefaultConfig drops what is too long and estimates as for a model of 0.6 billion parameters.
func DefaultConfig() Config {
	return Config{Overlong: OverlongDrop, ZeroOutputBatches: 8, MaxWaves: 8, FlopsLinear: 10_000, FlopsQuadratic: 1}
}

// Validate checks the section on its own.
func (c Config) Validate() error {
	switch {
	case c.Overlong != OverlongDrop && c.Overlong != OverlongCut && c.Overlong != OverlongError:
		return fmt.Errorf("packer.overlong = %q: drop, cut or error", c.Overlong)
	case c.ZeroOutputBatches < 1:
		return fmt.Errorf("packer.zero_output_batches = %d: at least 1", c.ZeroOutputBatches)
	case c.MaxWaves < 1:
		return fmt.Errorf("packer.max_waves = %d: at least 1", c.MaxWaves)
	case c.FlopsLinear < 0 || c.FlopsQuadratic < 0 || c.FlopsLinear+c.FlopsQuadratic == 0:
		return fmt.Errorf("packer.flops_linear = %d, packer.flops_quadratic = %d: 0 or more, and not both 0", c.FlopsLinear, c.FlopsQuadratic)
	}
	return nil
}
