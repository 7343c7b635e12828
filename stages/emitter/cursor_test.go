package emitter

import (
	"slices"
	"testing"
)

func TestCursorServesAllBeforeAnyAgain(t *testing.T) {
	for _, n := range []int64{1, 2, 3, 4, 5, 7, 8, 16, 17, 63, 64, 65, 1000, 1025} {
		c := cursor{key: 42}
		var last []int64
		for epoch := range 3 {
			var order []int64
			for range n {
				if epoch == 1 && len(order) == int(n)/2 {
					c = cursor{key: 42, epoch: c.epoch, pos: c.pos} // a restart
				}
				order = append(order, c.next(n))
			}
			if n >= 63 && slices.Equal(order, last) {
				t.Errorf("%d tasks: epoch %d has the order of the one before", n, epoch)
			}
			last = slices.Clone(order)
			slices.Sort(order)
			for i, v := range order {
				if v != int64(i) {
					t.Fatalf("%d tasks: epoch %d serves %v", n, epoch, order)
				}
			}
		}
	}
}

func TestCursorOrderIsUniform(t *testing.T) {
	const n, epochs = 12, 12000
	var count [n][n]float64 // place, task
	c := cursor{key: 3}
	for range epochs {
		for place := range n {
			count[place][c.next(n)]++
		}
	}
	chi2, want := 0.0, float64(epochs)/n
	for place := range n {
		for task := range n {
			chi2 += (count[place][task] - want) * (count[place][task] - want) / want
		}
	}
	if chi2 > 180 { // 121 degrees of freedom: mean 121, standard deviation 15.6
		t.Errorf("chi² of places and tasks is %.0f", chi2)
	}
}

func TestCursorTakesHugeSplits(t *testing.T) {
	c, seen := cursor{key: 1}, map[int64]bool{}
	for range 1000 {
		v := c.next(1 << 40)
		if v < 0 || v >= 1<<40 || seen[v] {
			t.Fatalf("task %d", v)
		}
		seen[v] = true
	}
}
