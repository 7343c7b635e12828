package envserver

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// An entry is what a core's state says of one unfinished task; a task without an entry was never started.
type entry struct {
	offset  int64
	started bool // it may be running: if this is read after a restart, it ended without warning
	crashes int  // ends without warning before
}

// encodeState writes entries, in order of their offsets, as varints: a format number, then for each the distance from
// the offset before and crashes<<1 | started.
func encodeState(entries []entry) []byte {
	b := []byte{stateFormat}
	last := int64(0)
	for _, e := range entries {
		b = binary.AppendUvarint(b, uint64(e.offset-last))
		v := uint64(e.crashes) << 1
		if e.started {
			v |= 1
		}
		b, last = binary.AppendUvarint(b, v), e.offset
	}
	return b
}

const stateFormat = 1

// decodeState reads what encodeState wrote; nil is no entries.
func decodeState(b []byte) ([]entry, error) {
	if len(b) == 0 {
		return nil, nil
	}
	if b[0] != stateFormat {
		return nil, fmt.Errorf("state of format %d, this version knows %d", b[0], stateFormat)
	}
	b = b[1:]
	var entries []entry
	last := uint64(0)
	for len(b) > 0 {
		distance, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errTorn
		}
		v, m := binary.Uvarint(b[n:])
		if m <= 0 || distance > 1<<62 || last > 1<<62 || v > 1<<20 {
			return nil, errTorn
		}
		last += distance
		entries, b = append(entries, entry{int64(last), v&1 == 1, int(v >> 1)}), b[n+m:]
	}
	return entries, nil
}

var errTorn = errors.New("state is torn")
