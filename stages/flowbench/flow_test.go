package flowbench

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/errgroup"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver"
	"github.com/prl-project/prl/stages/envserver/env"
)

// BenchmarkFlow lets all stages of one process make a whole run, from the emitter to the null learner, with rollouts that take no
// time, and says how many it trains a second. raw is how many a plain producer and a plain consumer move: every byte of the run's
// topics once.
//
// Then it gives rollouts of the usual length as much time as makes for half of that rate. Of every hop it says how long it took from
// the record that completes a stage's input to the stage's output: a task to its trace (without the time that the rollout took), a group's last
// trace to its SampleGroup, the SampleGroup that fills a step to the step's last MicroBatch, that to the PolicyVersion.
func BenchmarkFlow(b *testing.B) {
	eachBroker(b, func(b *testing.B, brokers []string) {
		for _, s := range []shape{usual, long} {
			b.Run(s.name, func(b *testing.B) {
				full := newWorld(b, brokers, s, 8*s.batch)
				full.play(nil)
				at := full.look()
				b.Run("full", func(b *testing.B) { at.report(b) })
				raw := full.moveAll()
				b.Run("raw", func(b *testing.B) {
					b.ReportMetric(float64(s.rollouts())/raw.seconds, "rollouts/s")
					b.ReportMetric(raw.megabytes/raw.seconds, "MB/s")
				})
				for _, hop := range hops {
					b.Run("full/"+hop, func(b *testing.B) { at.reportHop(b, hop) })
				}
				if s.name == usual.name {
					half(b, brokers, s, at.rollouts/2)
				}
			})
		}
	})
}

// half plays at a rate of rollouts a second, by giving each its time.
func half(b *testing.B, brokers []string, s shape, rate float64) {
	// Between two of its rollouts a permit is on its way for a while.
	const onTheWay = 0.4
	permits := max(2*s.batch, int(rate*(1+onTheWay)))
	mean := float64(permits)/rate - onTheWay
	w := newWorld(b, brokers, s, permits)
	w.play(func(seed int64) time.Duration { // half of the mean to one and a half
		return time.Duration((0.5 + float64(seed&0xffff)/0x10000) * mean * float64(time.Second))
	})
	at := w.look()
	b.Run("half", func(b *testing.B) {
		at.report(b)
		b.ReportMetric(at.rollouts/rate/2, "load")
	})
	for _, hop := range hops {
		b.Run("half/"+hop, func(b *testing.B) { at.reportHop(b, hop) })
	}
}

// play runs all stages until the last step is trained.
func (w *world) play(takes func(seed int64) time.Duration) {
	w.Helper()
	envs := map[string]env.Environment{drillName: &drill{w.shape, takes}}
	played, err := envserver.New(w.rt.For("envserver"), w.app.Config.EnvServer, envs, parrot{w.shape}, nil)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(w.Context(), deadline)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	work, stop := context.WithCancel(ctx)
	g.Go(func() error { return played.Run(work) })
	for _, name := range []string{"emitter", "scorer", "packer"} {
		r := w.stage(name)
		g.Go(func() error { return r.Run(work) })
	}
	trainer := w.stage("trainer")
	g.Go(func() error {
		defer stop()
		return trainer.Run(work)
	})
	if err := g.Wait(); err != nil {
		w.Fatal(err)
	}
}

// hops are the stages on the way of a rollout, in its order.
var hops = []string{"envserver", "scorer", "packer", "trainer"}

// What a run did, as its log has it.
type measured struct {
	rollouts  float64 // trained, a second
	megabytes float64 // of traces, a second
	hops      map[string][]time.Duration
}

// look reads off a run's log what it did: the rate from the first task to the last PolicyVersion, and how long the hops of all but
// the first steps took, without the tasks from before the first trace: they wait until the environment server has joined its group.
func (w *world) look() measured {
	w.Helper()
	type rollout struct {
		group int64
		index int
	}
	tasks, lastTrace := map[rollout]time.Time{}, map[int64]time.Time{}
	type trace struct {
		rollout
		at    time.Time
		after time.Duration // that the rollout took
	}
	var traces []trace
	type scored struct {
		group int64
		at    time.Time
	}
	var groups []scored // in the order of the log, in which they are packed
	packed, trained := map[int64]time.Time{}, map[int64]time.Time{}
	bytes := 0
	tasksTopic := pipeline.TopicTasks(drillName)
	w.read(func(topic string, r *kgo.Record) {
		v, err := w.rt.DecodeValue(w.Context(), r.Value)
		if err != nil {
			w.Fatal(err)
		}
		switch v := v.(type) {
		case *schemas.Task:
			tasks[rollout{v.GroupID, v.RolloutIndex}] = r.Timestamp
		case *schemas.Trace:
			if len(v.Errors) > 0 && v.Errors[0].Type != schemas.ErrorCancelled {
				w.Fatalf("a rollout failed: %+v", v.Errors)
			}
			bytes += len(r.Value)
			took := time.Duration(v.Timing.SetupMs * float64(time.Millisecond))
			traces = append(traces, trace{rollout{v.GroupID, v.RolloutIndex}, r.Timestamp, took})
			if r.Timestamp.After(lastTrace[v.GroupID]) {
				lastTrace[v.GroupID] = r.Timestamp
			}
		case *schemas.SampleGroup:
			groups = append(groups, scored{v.GroupID, r.Timestamp})
		case *schemas.MicroBatch:
			if r.Timestamp.After(packed[v.Step]) {
				packed[v.Step] = r.Timestamp
			}
		case *schemas.PolicyVersion:
			trained[v.Version] = r.Timestamp
		}
	}, tasksTopic, pipeline.TopicTraces, pipeline.TopicSamples, pipeline.TopicBatches, pipeline.TopicPolicies)
	if int64(len(trained)) != w.steps+1 {
		w.Fatalf("%d versions after %d steps", len(trained), w.steps)
	}
	m := measured{hops: map[string][]time.Duration{}}
	m.rollouts = float64(w.rollouts()) / trained[w.steps].Sub(slices.MinFunc(slices.Collect(maps.Values(tasks)), time.Time.Compare)).Seconds()
	began := 1 + w.steps/5 // by then no stage has just started
	m.megabytes = m.rollouts * float64(bytes) / float64(len(traces)) / 1e6
	add := func(hop string, from, to time.Time) { m.hops[hop] = append(m.hops[hop], to.Sub(from)) }
	perStep, inTime := w.batch/groupSize, map[int64]bool{}
	for i, g := range groups {
		step := int64(i/perStep) + 1
		if step <= began || step > w.steps {
			continue
		}
		inTime[g.group] = true
		add("scorer", lastTrace[g.group], g.at)
		if i%perStep == perStep-1 {
			add("packer", g.at, packed[step])
			add("trainer", packed[step], trained[step])
		}
	}
	first := slices.MinFunc(traces, func(a, b trace) int { return a.at.Compare(b.at) }).at
	for _, t := range traces {
		if inTime[t.group] && tasks[t.rollout].After(first) {
			add("envserver", tasks[t.rollout].Add(t.after), t.at)
		}
	}
	return m
}

func (m measured) report(b *testing.B) {
	b.ReportMetric(m.rollouts, "rollouts/s")
	b.ReportMetric(m.megabytes, "MB/s")
}

func (m measured) reportHop(b *testing.B, hop string) {
	times := slices.Sorted(slices.Values(m.hops[hop]))
	if len(times) == 0 {
		b.Fatalf("nothing was seen of the %s", hop)
	}
	milliseconds := func(share float64) float64 {
		return times[int(share*float64(len(times)-1)+0.5)].Seconds() * 1000
	}
	b.ReportMetric(milliseconds(0.5), "p50-ms")
	b.ReportMetric(milliseconds(0.99), "p99-ms")
}
