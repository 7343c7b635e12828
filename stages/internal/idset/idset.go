// Package idset remembers which ids of a dense sequence have been dealt with: nearly all of them, in nearly the order
// of the sequence. A Set is kept as runs of consecutive ids, so its size follows the number of gaps (what is still
// open), never the number of ids.
package idset

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
)

// Set is a set of ids from 0 on. The zero value is empty.
type Set struct {
	runs []run // ascending, neither touching nor overlapping
}

// A run is the ids from lo to hi, both included.
type run struct{ lo, hi int64 }

// Has reports whether id is in the set.
func (s *Set) Has(id int64) bool {
	i := s.search(id)
	return i < len(s.runs) && s.runs[i].lo <= id
}

// Add puts id into the set and reports whether it was new.
func (s *Set) Add(id int64) bool {
	i := s.search(id)
	if i < len(s.runs) && s.runs[i].lo <= id {
		return false
	}
	before := i > 0 && s.runs[i-1].hi == id-1
	after := i < len(s.runs) && s.runs[i].lo-1 == id
	switch {
	case before && after:
		s.runs[i-1].hi = s.runs[i].hi
		s.runs = slices.Delete(s.runs, i, i+1)
	case before:
		s.runs[i-1].hi = id
	case after:
		s.runs[i].lo = id
	default:
		s.runs = slices.Insert(s.runs, i, run{id, id})
	}
	return true
}

// MissingFrom is the lowest id from lo on that is not in the set.
func (s *Set) MissingFrom(lo int64) int64 {
	if i := s.search(lo); i < len(s.runs) && s.runs[i].lo <= lo {
		return s.runs[i].hi + 1
	}
	return lo
}

// Between is the number of ids of the set from lo to hi, both included.
func (s *Set) Between(lo, hi int64) int64 {
	n := int64(0)
	for i := s.search(lo); i < len(s.runs) && s.runs[i].lo <= hi; i++ {
		n += max(0, min(hi, s.runs[i].hi)-max(lo, s.runs[i].lo)+1)
	}
	return n
}

// search is the index of the first run that does not end before id.
func (s *Set) search(id int64) int {
	i, _ := slices.BinarySearchFunc(s.runs, id, func(r run, id int64) int {
		if r.hi < id {
			return -1
		}
		return 1
	})
	return i
}

// Bytes is the set as varints: for each run its distance from the end of the one before, and its length less one.
func (s *Set) Bytes() []byte {
	b := []byte{}
	end := int64(0)
	for _, r := range s.runs {
		b = binary.AppendUvarint(b, uint64(r.lo-end))
		b = binary.AppendUvarint(b, uint64(r.hi-r.lo))
		end = r.hi
	}
	return b
}

// FromBytes reads what Bytes wrote.
func FromBytes(b []byte) (Set, error) {
	var s Set
	end := int64(0)
	for len(b) > 0 {
		gap, n := binary.Uvarint(b)
		if n <= 0 {
			return Set{}, fmt.Errorf("run %d: no distance", len(s.runs))
		}
		length, m := binary.Uvarint(b[n:])
		if m <= 0 {
			return Set{}, fmt.Errorf("run %d: no length", len(s.runs))
		}
		if len(s.runs) > 0 && gap < 2 || gap > uint64(math.MaxInt64-end) || length > uint64(math.MaxInt64-end)-gap {
			return Set{}, fmt.Errorf("run %d: %d ids at distance %d from %d", len(s.runs), length, gap, end)
		}
		lo := end + int64(gap)
		end = lo + int64(length)
		s.runs = append(s.runs, run{lo, end})
		b = b[n+m:]
	}
	return s, nil
}
