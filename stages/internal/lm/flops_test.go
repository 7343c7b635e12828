package lm

import "testing"

// flops are the multiplications and additions that the products of a forward pass ask for: two for each weight and row, and in
// attention four for each element of a query and position it sees. rows are the positions of all rows, wanted those of the rows
// that go through the whole of the last layer and the output projection. A backward pass asks for twice as many.
func (c Config) flops(rows, wanted []int32) float64 {
	h, n := c.HiddenSize, 0
	for l := range c.NumHiddenLayers {
		queries := rows
		if l == c.NumHiddenLayers-1 {
			queries = wanted
		}
		n += 2*len(rows)*h*2*c.KVDim() + 2*len(queries)*h*(2*c.qDim()+3*c.IntermediateSize)
		for _, p := range queries {
			n += 4 * c.qDim() * (int(p) + 1)
		}
	}
	return float64(n + 2*len(wanted)*h*c.VocabSize)
}

// TestFLOPs: a token alone asks for two operations for each weight of a matrix, and for attention to itself.
func TestFLOPs(t *testing.T) {
	c := demoConfig()
	norms := c.HiddenSize * (1 + 2*c.NumHiddenLayers)
	want := float64(2*(c.parameters()-norms) + 4*c.qDim()*c.NumHiddenLayers)
	if got := c.flops([]int32{0}, []int32{0}); got != want {
		t.Errorf("%g operations, want %g", got, want)
	}
}
