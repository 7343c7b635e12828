package scorer

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/prl-project/prl/stages/internal/idset"
	"github.com/prl-project/prl/stages/scorer/advantage"
)

// averaged begins a state that has averages: a zero that is longer than it need be, as no set of ids begins, so a state
// without averages is the set alone. The length of the set follows, then the set, then the averages.
var averaged = []byte{0x80, 0}

func writeState(decided *idset.Set, averages advantage.Averages) []byte {
	ids := decided.Bytes()
	if len(averages) == 0 {
		return ids
	}
	b := binary.AppendUvarint(bytes.Clone(averaged), uint64(len(ids)))
	return averages.Append(append(b, ids...))
}

func readState(b []byte) (idset.Set, advantage.Averages, error) {
	averages := advantage.Averages{}
	if rest, ok := bytes.CutPrefix(b, averaged); ok {
		length, n := binary.Uvarint(rest)
		if n <= 0 || length > uint64(len(rest)-n) {
			return idset.Set{}, nil, fmt.Errorf("the decided groups: %d bytes of %d", length, len(rest))
		}
		var err error
		if averages, err = advantage.ReadAverages(rest[n+int(length):]); err != nil {
			return idset.Set{}, nil, err
		}
		b = rest[n : n+int(length)]
	}
	decided, err := idset.FromBytes(b)
	if err != nil {
		return idset.Set{}, nil, fmt.Errorf("the decided groups: %w", err)
	}
	return decided, averages, nil
}

// Before reports whether no group from next on is decided in a state of the scorer of a run with one partition of traces.
func Before(state []byte, next int64) (bool, error) {
	decided, _, err := readState(state)
	return decided.Between(next, math.MaxInt64) == 0, err
}

// Begin is the state of the scorer of a run that begins from a version of another one, whose scorer's state it was then: its
// averages alone. It is empty where there are none.
func Begin(state []byte) ([]byte, error) {
	_, averages, err := readState(state)
	return writeState(&idset.Set{}, averages), err
}
