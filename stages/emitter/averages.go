package emitter

import (
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
)

// averages are a few moving averages for each environment of which there has been a result.
type averages map[string][3]float64

func (a averages) state() []byte {
	var b []byte
	for _, name := range slices.Sorted(maps.Keys(a)) {
		b = appendText(b, name)
		for _, v := range a[name] {
			b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
		}
	}
	return b
}

func (a averages) restore(state []byte) error {
	r := reader{rest: state}
	for last := ""; len(r.rest) > 0; {
		name := r.text()
		values := [3]float64{r.float(), r.float(), r.float()}
		if r.err != nil {
			return r.err
		}
		if name <= last {
			return fmt.Errorf("the averages of %q come after those of %q", name, last)
		}
		a[name], last = values, name
	}
	return nil
}

// move takes an average towards a value.
func move(average *float64, value, rate float64) { *average += rate * (value - *average) }
