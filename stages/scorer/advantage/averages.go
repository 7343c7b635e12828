package advantage

import (
	"cmp"
	"encoding/binary"
	"fmt"
	"maps"
	"math"
	"slices"
)

// A Key names a moving average.
type Key struct{ Env, Agent string }

// Averages are the moving averages of rewards; one that is not there is 0.
type Averages map[Key]float64

// Append appends the averages, by environment and agent: for each the lengths of both names and the names, then eight
// bytes of the value, little-endian.
func (a Averages) Append(b []byte) []byte {
	for _, k := range slices.SortedFunc(maps.Keys(a), func(x, y Key) int {
		return cmp.Or(cmp.Compare(x.Env, y.Env), cmp.Compare(x.Agent, y.Agent))
	}) {
		b = binary.AppendUvarint(b, uint64(len(k.Env)))
		b = binary.AppendUvarint(b, uint64(len(k.Agent)))
		b = append(append(b, k.Env...), k.Agent...)
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(a[k]))
	}
	return b
}

// ReadAverages reads what Append wrote.
func ReadAverages(b []byte) (Averages, error) {
	a := Averages{}
	for len(b) > 0 {
		env, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, fmt.Errorf("average %d: no length of the environment's name", len(a))
		}
		agent, m := binary.Uvarint(b[n:])
		if m <= 0 {
			return nil, fmt.Errorf("average %d: no length of the agent's name", len(a))
		}
		b = b[n+m:]
		if rest := uint64(len(b)); env > rest || agent > rest-env || rest-env-agent < 8 {
			return nil, fmt.Errorf("average %d: names of %d and %d bytes and a value in %d bytes", len(a), env, agent, rest)
		}
		k := Key{string(b[:env]), string(b[env : env+agent])}
		v := math.Float64frombits(binary.LittleEndian.Uint64(b[env+agent:]))
		if _, twice := a[k]; twice || math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, fmt.Errorf("average %d, of %q and %q: %v, twice: %v", len(a), k.Env, k.Agent, v, twice)
		}
		a[k], b = v, b[env+agent+8:]
	}
	return a, nil
}
