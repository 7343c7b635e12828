package pipeline

import (
	"bytes"
	"compress/flate"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"sync"
)

// maxSpan bounds the offsets one state record may speak of, so that a hostile one cannot ask for much memory.
const maxSpan = 1 << 26

// unfinished is the set of offsets of one partition that a core has been fed and not finished.
type unfinished struct {
	open map[int64]struct{}
	next int64 // first offset not fed
}

func newUnfinished(next int64, open []int64) *unfinished {
	u := &unfinished{map[int64]struct{}{}, next}
	for _, o := range open {
		u.open[o] = struct{}{}
	}
	return u
}

// feed adds an offset; what lies between it and the one before is a gap and counts as finished.
func (u *unfinished) feed(offset int64) {
	u.open[offset] = struct{}{}
	u.next = offset + 1
}

// finish removes an offset and reports whether it was there.
func (u *unfinished) finish(offset int64) bool {
	_, ok := u.open[offset]
	delete(u.open, offset)
	return ok
}

// offsets lists the set in order.
func (u *unfinished) offsets() []int64 {
	list := make([]int64, 0, len(u.open))
	for o := range u.open {
		list = append(list, o)
	}
	slices.Sort(list)
	return list
}

// compressors are used again: each takes a megabyte, and every state record needs one.
var compressors = sync.Pool{New: func() any {
	w, err := flate.NewWriter(nil, flate.DefaultCompression)
	if err != nil {
		panic(err) // there is no such level
	}
	return w
}}

// encode gives the low offset and the deflated bitset over [low, next).
func (u *unfinished) encode() (low int64, deflated []byte, err error) {
	list := u.offsets()
	if len(list) == 0 {
		return u.next, nil, nil
	}
	low = list[0]
	set := make([]byte, (u.next-low+7)/8)
	for _, o := range list {
		set[(o-low)/8] |= 1 << ((o - low) % 8)
	}
	var b bytes.Buffer
	w := compressors.Get().(*flate.Writer)
	defer compressors.Put(w)
	w.Reset(&b)
	if _, err := w.Write(set); err != nil {
		return 0, nil, err
	}
	if err := w.Close(); err != nil {
		return 0, nil, err
	}
	return low, b.Bytes(), nil
}

// UnfinishedOffsets reads the set of a state record: the offsets in [low, next) whose bit is set, in order.
func UnfinishedOffsets(low, next int64, deflated []byte) ([]int64, error) {
	if len(deflated) == 0 {
		return nil, nil
	}
	if next < low || next-low > maxSpan {
		return nil, fmt.Errorf("unfinished set from offset %d to %d", low, next)
	}
	want := (next - low + 7) / 8
	set, err := io.ReadAll(io.LimitReader(flate.NewReader(bytes.NewReader(deflated)), want+1))
	if err != nil {
		return nil, fmt.Errorf("unfinished set: %w", err)
	}
	if int64(len(set)) != want {
		return nil, fmt.Errorf("unfinished set has %d bytes, want %d", len(set), want)
	}
	var list []int64
	for i, b := range set {
		for ; b != 0; b &= b - 1 {
			o := low + int64(i)*8 + int64(bits.TrailingZeros8(b))
			if o >= next {
				return nil, fmt.Errorf("unfinished set names offset %d, the next one is %d", o, next)
			}
			list = append(list, o)
		}
	}
	return list, nil
}

// low is the oldest offset of the set, or the next one to feed.
func (u *unfinished) low() int64 {
	low := u.next
	for o := range u.open {
		low = min(low, o)
	}
	return low
}
