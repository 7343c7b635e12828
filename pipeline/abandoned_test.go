package pipeline

import (
	"testing"
	"time"
)

// However many are in a group, they ask for its members no more than about a hundred times a second, all together, and not all at once; a
// few look every other second.
func TestLooksDoNotGrowWithTheGroup(t *testing.T) {
	for _, members := range []int{0, 1, 16, 1000, 10_000} {
		least, most, sum := time.Hour, time.Duration(0), time.Duration(0)
		const n = 1000
		for range n {
			pause := pauseAmong(members)
			least, most, sum = min(least, pause), max(most, pause), sum+pause
		}
		if rate := float64(members) / (sum / n).Seconds(); rate > 1.1/memberPause.Seconds() {
			t.Errorf("%d members look %.0f times a second", members, rate)
		}
		if least < heirPatience/2 || most < 2*least || members < 20 && most > 2*heirPatience {
			t.Errorf("%d members pause from %v to %v", members, least, most)
		}
	}
}
