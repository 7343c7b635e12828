package stages

import (
	"flag"
	"fmt"
	"testing"
)

var oldest = flag.Int64("groups", 0, "BenchmarkRestart: a further age of the run, in groups, beside ten and a hundred thousand")

// inFlight is what a large run has in flight: half of 10,000 rollouts of 12 × 256 tokens at the scorer, and a step of 2,000
// at the packer.
var inFlight = flight{scoring: 5000, packing: 1000, nodes: 12, tokens: 256}

// BenchmarkRestart kills nothing but finds what a kill leaves: it restarts every stage of a run of some age with work in
// flight, until it has made its first progress.
//
//	go test ./stages -run '^$' -bench Restart -benchtime 1x -timeout 1h -args -groups 1000000
func BenchmarkRestart(b *testing.B) {
	ages := []int64{10_048, 100_032}
	if *oldest > 0 {
		ages = append(ages, *oldest)
	}
	for _, n := range ages {
		b.Run(fmt.Sprintf("groups=%d", n), func(b *testing.B) {
			o := newOldRun(b, n, inFlight)
			for _, stage := range restarted() {
				b.Run(stage, func(b *testing.B) { o.measure(b, stage) })
			}
		})
	}
}

func (o *oldRun) measure(b *testing.B, stage string) {
	defer func(run testing.TB) { o.TB = run }(o.TB)
	o.TB = b
	if stage == "sink" {
		o.sinkAll()
	}
	var r restart
	for b.Loop() {
		r = o.restart(stage)
	}
	b.ReportMetric(float64(r.took.Microseconds())/1000, "ms")
	b.ReportMetric(float64(r.read), "records")
	b.ReportMetric(float64(r.bytes)/1e6, "MB")
	b.ReportMetric(float64(r.heap)/(1<<20), "MiB")
}
