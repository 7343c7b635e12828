package scorer

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/prl-project/prl/schemas"
)

// Groups in memory that others have left, full of what they left, are those in new memory; and a group that was not given back
// stays as it is.
func TestRecycle(t *testing.T) {
	sizes := []int{64, 256, 80, 96, 256, 64}
	for _, w := range ways() {
		fresh, again := newScoring(t, w, nil), newScoring(t, w, nil)
		var kept []*schemas.SampleGroup
		var want [][]byte
		for i, tokens := range sizes {
			traces := groupOf(tokens)
			fresh.traces, again.traces = traces, traces
			kept = append(kept, fresh.group(t))
			sg := again.group(t)
			want = append(want, encoded(t, kept[i]))
			if got := encoded(t, sg); !bytes.Equal(got, want[i]) {
				t.Errorf("%s: group %d is another one in memory that is used again", w.name, i)
			}
			schemas.Tensors(sg, func(_ string, data *[]byte) {
				for k := range *data {
					(*data)[k] = 0xFF
				}
			})
			again.recycle(sg)
			if len(sg.Samples) > 0 {
				t.Errorf("%s: a group that was given back still has samples", w.name)
			}
		}
		for i, sg := range kept {
			if !bytes.Equal(encoded(t, sg), want[i]) {
				t.Errorf("%s: group %d was not given back, and has changed", w.name, i)
			}
		}
	}
}

// Of two groups that are there at once, the one that comes back leaves the other alone.
func TestRecycle_TwoAtOnce(t *testing.T) {
	for _, order := range [][]int{{0}, {1}, {0, 1}, {1, 0}} {
		s := newScoring(t, way{"grpo", func(*Settings) {}}, groupOf(256))
		s.recycle(s.group(t)) // there is room for both now
		s.traces = groupOf(64)
		groups := []*schemas.SampleGroup{s.group(t), s.group(t)}
		bytesOf := [][]byte{encoded(t, groups[0]), encoded(t, groups[1])}
		back := map[int]bool{}
		for _, i := range order {
			s.recycle(groups[i])
			back[i] = true
			s.traces = groupOf(70 + i)
			groups, bytesOf = append(groups, s.group(t)), append(bytesOf, nil)
			bytesOf[len(groups)-1] = encoded(t, groups[len(groups)-1])
			for k, sg := range groups {
				if !back[k] && !bytes.Equal(encoded(t, sg), bytesOf[k]) {
					t.Errorf("%v: group %d has changed", order, k)
				}
			}
		}
	}
}

func encoded(tb testing.TB, sg *schemas.SampleGroup) []byte {
	tb.Helper()
	b, err := schemas.Encode(sg)
	if err != nil {
		tb.Fatal(fmt.Errorf("group %d: %w", sg.GroupID, err))
	}
	return b
}
