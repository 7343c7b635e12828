package filter

import (
	"math"
	"testing"

	"github.com/prl-project/prl/schemas"
)

func TestZero(t *testing.T) {
	for _, tt := range []struct {
		advantages []float32
		want       bool
	}{
		{[]float32{0, 0}, true},
		{[]float32{0, float32(math.Copysign(0, -1))}, true},
		{[]float32{0, 1e-40}, false},
		{nil, true},
	} {
		s := Sample{Sample: &schemas.Sample{Advantages: schemas.PackFloat32s(tt.advantages)}}
		if got := (Zero{}).Takes(s); got != tt.want {
			t.Errorf("takes %v: %v", tt.advantages, got)
		}
	}
}

func TestMode(t *testing.T) {
	if Drop.Validate() != nil || Monitor.Validate() != nil || Mode("").Validate() == nil {
		t.Error("drop and monitor are the modes")
	}
}
