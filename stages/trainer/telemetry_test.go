package trainer

import (
	"maps"
	"testing"
	"time"
)

func TestFiguresOfWork(t *testing.T) {
	for what, test := range map[string]struct {
		work Work
		want map[string]float64
	}{
		"all is known": {
			Work{Tokens: 800, FLOPs: 3e12, PeakFLOPS: 4e12, Memory: 5},
			map[string]float64{figureSpeed: 200, figureWait: 0.25, figureTrain: 2, figureMFU: 0.375, figureMemory: 5},
		},
		"a learner that counts tokens": {Work{Tokens: 400}, map[string]float64{figureSpeed: 100, figureWait: 0.25, figureTrain: 2}},
		"an unknown device":            {Work{FLOPs: 1}, map[string]float64{figureSpeed: 0, figureWait: 0.25, figureTrain: 2}},
	} {
		if got := figuresOf(test.work, time.Second, 2*time.Second, 4*time.Second); !maps.Equal(got, test.want) {
			t.Errorf("%s: %v, want %v", what, got, test.want)
		}
	}
}
