package flowbench

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/ui"
)

var oldest = flag.Int64("groups", 0, "BenchmarkRestart: a further age of the run, in groups, beside ten and a hundred thousand")

// inFlight is what a large run has in flight: half of 10,000 rollouts of 12 × 256 tokens at the scorer, and a step of 2,000
// at the packer.
var inFlight = flight{scoring: 5000, packing: 1000, nodes: 12, tokens: 256}

// BenchmarkRestart kills every stage of a run of some age while it works, with SIGKILL and with work in flight, and starts it again:
// how long it takes from its start as a process, and what it reads, until it has made its first progress. Each stage is a process of its
// own and talks to the broker over TCP: kfake in this process, and for one of them Apache Kafka, too.
//
//	go test ./stages/flowbench -run '^$' -bench Restart -benchtime 1x -timeout 1h -args -groups 1000000
func BenchmarkRestart(b *testing.B) {
	ages := []int64{10_048, 100_032}
	if *oldest > 0 {
		ages = append(ages, *oldest)
	}
	for _, n := range ages {
		b.Run(fmt.Sprintf("groups=%d", n), func(b *testing.B) {
			o := newOldRun(b, fake(b), n, inFlight)
			for _, stage := range restarted() {
				if stage != ui.Name { // it has no progress to make
					b.Run(stage, func(b *testing.B) { o.measure(b, stage) })
				}
			}
		})
	}
	b.Run("kafka", func(b *testing.B) {
		o := newOldRun(b, kafkatest.Shared(b), ages[0], inFlight)
		for _, stage := range []string{"scorer", "packer"} {
			b.Run(stage, func(b *testing.B) { o.measure(b, stage) })
		}
	})
}

func (o *oldRun) measure(b *testing.B, stage string) {
	defer func(run testing.TB) { o.TB = run }(o.TB)
	o.TB = b
	if stage == "sink" {
		o.sinkAll()
	}
	for b.Loop() {
		o.kill(b, stage)
		began := time.Now()
		p := o.process(b, stage)
		p.expect(b, "began")
		exec := time.Since(began)
		took := o.untilItWorks(b, stage, p).Sub(began)
		read := p.usage(b)
		p.kill(b)
		b.ReportMetric(float64(took.Microseconds())/1000, "ms")
		b.ReportMetric(float64(exec.Microseconds())/1000, "exec-ms")
		b.ReportMetric(float64(read.records), "records")
		b.ReportMetric(float64(read.bytes)/1e6, "MB")
		b.ReportMetric(1000*read.seconds, "cpu-ms")
	}
}

// kill starts a stage, lets it commit some work, gives it more, and kills it over that.
func (o *oldRun) kill(b *testing.B, stage string) {
	o.Helper()
	p := o.process(b, stage)
	p.expect(b, "began")
	const more = 200
	o.untilItWorks(b, stage, p)
	o.work(stage, more, nil)
	p.kill(b)
	o.settle(stage)
}

// process is a stage's, under the name that it has had before.
func (o *oldRun) process(b *testing.B, stage string) *process {
	return startProcess(b, spec{Stage: stage, Instance: "one", Brokers: o.addrs, Sets: o.sets, Tasks: o.tasks(stage)})
}

// untilItWorks gives a stage in a process a record, and waits until it works. It says when.
func (o *oldRun) untilItWorks(b *testing.B, stage string, p *process) (at time.Time) {
	o.Helper()
	ready := false
	works := o.work(stage, 1, func() bool { return ready })
	o.await(stage, works, func() error {
		select {
		case line := <-p.lines:
			ready = line == "ready"
		case <-p.done:
			return fmt.Errorf("the process ended: %v\n%s", p.cmd.ProcessState, p.log.String())
		default:
		}
		return nil
	})
	at = time.Now()
	for !ready { // a stage may commit a moment before it says that it is ready
		ready = p.says(b) == "ready"
	}
	return at
}

// settle takes what a stage that is dead has committed for what was kept, once the broker has done what it was told last.
func (o *oldRun) settle(stage string) {
	o.Helper()
	topic := map[string]string{"emitter": pipeline.TopicOutcomes, "scorer": pipeline.TopicTraces, "packer": pipeline.TopicSamples, "eval": pipeline.TopicEvalTraces}[stage]
	if topic == "" {
		return
	}
	for same := 0; same < 5; time.Sleep(5 * time.Millisecond) {
		at := o.commit(stage, topic).Metadata
		if same++; at != o.kept[topic] {
			same, o.kept[topic] = 0, at
		}
	}
}
