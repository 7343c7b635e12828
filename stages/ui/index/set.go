package index

// A Set is the rollouts that a query finds, a bit for each offset of its partitions.
type Set struct {
	parts map[part]*bits
	n     int
}

type part struct {
	eval      bool
	partition int32
}

type bits struct {
	base int64
	set  []uint64
}

// maxBits bounds the offsets of a partition that a set tells apart, should they lie far from each other: 128 MiB.
const maxBits = 1 << 30

// Set gives the rollouts that a query finds. Limit, order and page do not count.
func (x *Index) Set(q Query) *Set {
	x.mu.RLock()
	defer x.mu.RUnlock()
	s := &Set{parts: map[part]*bits{}}
	t, possible := x.compile(q)
	if !possible {
		return s
	}
	last := map[part]int64{}
	for i := range x.entries {
		id := x.entries[i].id()
		p := part{id.Eval, id.Partition}
		if b := s.parts[p]; b == nil {
			s.parts[p], last[p] = &bits{base: id.Offset}, id.Offset
		} else {
			b.base, last[p] = min(b.base, id.Offset), max(last[p], id.Offset)
		}
	}
	for p, b := range s.parts {
		b.base = max(b.base, last[p]-maxBits)
		b.set = make([]uint64, (last[p]-b.base)/64+1)
	}
	for i := range x.entries {
		e := &x.entries[i]
		if !t.matches(x, e) {
			continue
		}
		id := e.id()
		b := s.parts[part{id.Eval, id.Partition}]
		if at := id.Offset - b.base; at >= 0 {
			b.set[at/64] |= 1 << (at % 64)
			s.n++
		}
	}
	return s
}

// Has reports whether a rollout is in the set.
func (s *Set) Has(id ID) bool {
	b := s.parts[part{id.Eval, id.Partition}]
	if b == nil {
		return false
	}
	at := id.Offset - b.base
	return at >= 0 && at/64 < int64(len(b.set)) && b.set[at/64]&(1<<(at%64)) != 0
}

// Len is the number of rollouts in the set.
func (s *Set) Len() int { return s.n }
