package idset

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"
)

func TestSetIsAMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		var s Set
		want := map[int64]bool{}
		size := 1 + rng.Int64N(60)
		for range 3 * size {
			id := rng.Int64N(size)
			if s.Add(id) == want[id] {
				t.Fatalf("Add(%d) says %v, the set is %v", id, want[id], s.runs)
			}
			want[id] = true
			restored, err := FromBytes(s.Bytes())
			if err != nil || !bytes.Equal(restored.Bytes(), s.Bytes()) {
				t.Fatalf("%v comes back as %v, %v", s.runs, restored.runs, err)
			}
			lo, hi := rng.Int64N(size), rng.Int64N(size)
			if m := restored.MissingFrom(lo); m < lo || restored.Has(m) || restored.Between(lo, m) != m-lo {
				t.Fatalf("MissingFrom(%d) of %v = %d", lo, restored.runs, m)
			}
			n := int64(0)
			for i := range size {
				if restored.Has(i) != want[i] {
					t.Fatalf("Has(%d) of %v", i, restored.runs)
				}
				if lo <= i && i <= hi && want[i] {
					n++
				}
			}
			if got := restored.Between(lo, hi); got != n {
				t.Fatalf("Between(%d, %d) of %v = %d, not %d", lo, hi, s.runs, got, n)
			}
		}
	}
}

func TestSizeFollowsGaps(t *testing.T) {
	var s Set
	for id := range int64(1_000_000) {
		if id%200_000 != 77 {
			s.Add(id)
		}
	}
	if n := len(s.Bytes()); n > 40 {
		t.Fatalf("a million ids with five gaps take %d bytes", n)
	}
}

func TestLargestID(t *testing.T) {
	var s Set
	for _, id := range []int64{math.MaxInt64, 0, math.MaxInt64 - 1, math.MaxInt64} {
		s.Add(id)
	}
	if got, err := FromBytes(s.Bytes()); err != nil || !got.Has(math.MaxInt64) || !got.Has(0) || got.Has(1) {
		t.Fatalf("%v, %v", got.runs, err)
	}
}

func FuzzFromBytes(f *testing.F) {
	f.Add([]byte{5, 3, 2, 0})
	f.Add([]byte{0, 0, 1, 1})
	f.Add([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := FromBytes(b)
		if err != nil {
			return
		}
		again, err := FromBytes(s.Bytes())
		if err != nil || !bytes.Equal(again.Bytes(), s.Bytes()) {
			t.Fatalf("%v comes back as %v, %v", s.runs, again.runs, err)
		}
		for i, r := range s.runs {
			if r.lo > r.hi || r.lo < 0 || i > 0 && s.runs[i-1].hi+1 >= r.lo {
				t.Fatalf("runs %v", s.runs)
			}
		}
	})
}
