package pipeline

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func TestUnfinishedRoundTrip(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for _, span := range []int64{0, 1, 7, 8, 9, 64, 1000, 100_000} {
		u := newUnfinished(5, nil)
		for o := int64(5); o < 5+span; o++ {
			if rng.IntN(10) == 0 {
				continue // a gap: a transaction marker
			}
			u.feed(o)
			if rng.IntN(3) > 0 {
				u.finish(o)
			}
		}
		low, bits, err := u.encode()
		if err != nil {
			t.Fatal(err)
		}
		list, err := UnfinishedOffsets(low, u.next, bits)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(list, u.offsets()) {
			t.Errorf("span %d: %d offsets came back of %d", span, len(list), len(u.offsets()))
		}
		if low != u.low() {
			t.Errorf("span %d: low %d, want %d", span, low, u.low())
		}
	}
}

// TestUnfinishedIsSmall holds the set of 5,000 open groups of eight, finished in blocks, to what offset metadata's
// replacement may cost.
func TestUnfinishedIsSmall(t *testing.T) {
	u := newUnfinished(0, nil)
	for o := range int64(40_000) {
		u.feed(o)
		if o/8%3 > 0 {
			u.finish(o)
		}
	}
	_, bits, err := u.encode()
	if err != nil {
		t.Fatal(err)
	}
	if len(bits) > 1024 {
		t.Errorf("%d bytes", len(bits))
	}
}

func FuzzUnfinishedOffsets(f *testing.F) {
	u := newUnfinished(0, []int64{3, 9})
	u.next = 12
	low, bits, err := u.encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(low, u.next, bits)
	f.Add(int64(0), int64(1)<<40, []byte{1})
	f.Fuzz(func(t *testing.T, low, next int64, bits []byte) {
		list, err := UnfinishedOffsets(low, next, bits)
		if err != nil {
			return
		}
		for i, o := range list {
			if o < low || o >= next || i > 0 && o <= list[i-1] {
				t.Fatalf("offset %d of a set from %d to %d", o, low, next)
			}
		}
	})
}
