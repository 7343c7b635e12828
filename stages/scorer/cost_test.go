package scorer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/deploy/kafka/kafkatest"
	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

const (
	costGroups = 3000 // of the throughput run
	costSize   = 8    // rollouts in a group
	costPaced  = 200  // groups of the latency run
	costPause  = 10 * time.Millisecond
)

// BenchmarkExactlyOnce measures what transactions cost the scorer on Apache Kafka: traces per second with all traces
// waiting, and the time from the acknowledgement of a group's last trace to the SampleGroup at a consumer, at a hundred
// groups a second. Both ways run the same core on the same broker in the same run. Without transactions means:
// acknowledged by all replicas and idempotent, offsets committed afterwards, so that a kill does work twice and twice
// decided groups reach the packer.
//
//	make kafka
//	PRL_TEST_KAFKA_BROKERS=localhost:9092 go test ./stages/scorer -run '^$' -bench ExactlyOnce -benchtime 5x
func BenchmarkExactlyOnce(b *testing.B) {
	brokers := kafkatest.Shared(b)
	ways := map[string]func(*testing.B, *pipeline.Runtime) func(){"transactions": transactional, "without": plain}
	figures := map[string]map[string][]float64{}
	for name := range ways {
		figures[name] = map[string][]float64{}
	}
	for b.Loop() {
		for _, name := range []string{"transactions", "without"} {
			perSecond := throughput(b, brokers, ways[name])
			times := latency(b, brokers, ways[name])
			f := figures[name]
			f["traces/s"] = append(f["traces/s"], perSecond)
			f["p50-ms"] = append(f["p50-ms"], times[len(times)/2])
			f["p99-ms"] = append(f["p99-ms"], times[len(times)*99/100])
		}
	}
	for unit, with := range figures["transactions"] {
		without := figures["without"][unit]
		b.ReportMetric(median(with), "with-"+unit)
		b.ReportMetric(median(without), "without-"+unit)
		b.ReportMetric(median(with)/median(without), "ratio-"+unit)
	}
}

func median(values []float64) float64 { return slices.Sorted(slices.Values(values))[len(values)/2] }

func costRun(b *testing.B, brokers []string) *pipeline.Runtime {
	b.Helper()
	run := pipeline.DefaultRunConfig()
	run.Name, run.TracePartitions = fmt.Sprintf("cost-%08x", rand.Uint32()), 1
	rt := pipelinetest.Runtime(b, brokers, run)
	if err := rt.SetUp(b.Context(), nil); err != nil {
		b.Fatal(err)
	}
	return rt
}

// realistic is a trace of 12 nodes of 256 tokens.
func realistic(group int64, rollout int) *schemas.Trace {
	t := &schemas.Trace{Env: "catch", GroupID: group, GroupSize: costSize, RolloutIndex: rollout, Reward: new(float64(rollout))}
	for i := range 6 {
		t.Nodes = append(t.Nodes, prompt(2*i-1, 1, 256), answer(2*i, 1, 256, run(0, 4)))
	}
	t.PolicyStart, t.PolicyEnd = new(int64(4)), new(int64(4))
	return t
}

func records(b *testing.B, rt *pipeline.Runtime, groups int) []*kgo.Record {
	b.Helper()
	var all []*kgo.Record
	for g := range int64(groups) {
		for i := range costSize {
			r, err := rt.Encode(b.Context(), pipeline.Emission{Topic: pipeline.TopicTraces, Partition: 0, Value: realistic(g, i)})
			if err != nil {
				b.Fatal(err)
			}
			all = append(all, r)
		}
	}
	return all
}

// samples calls seen for every SampleGroup in order, until it returns false.
func samples(b *testing.B, rt *pipeline.Runtime, cl *kgo.Client, seen func(*kgo.Record) bool) {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), 2*time.Minute)
	defer cancel()
	for {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			b.Fatal(err)
		}
		for iter := fetches.RecordIter(); !iter.Done(); {
			if !seen(iter.Next()) {
				return
			}
		}
	}
}

func costClient(b *testing.B, rt *pipeline.Runtime) *kgo.Client {
	b.Helper()
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.FetchIsolationLevel(kgo.ReadCommitted()),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{rt.TopicName(pipeline.TopicSamples): {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(cl.Close)
	return cl
}

// throughput is the traces per second at which a scorer works off what waits for it.
func throughput(b *testing.B, brokers []string, start func(*testing.B, *pipeline.Runtime) func()) float64 {
	rt := costRun(b, brokers)
	cl := costClient(b, rt)
	if err := cl.ProduceSync(b.Context(), records(b, rt, costGroups)...).FirstErr(); err != nil {
		b.Fatal(err)
	}
	defer start(b, rt)()
	var first time.Time
	n, rest := 0, 0
	samples(b, rt, cl, func(*kgo.Record) bool {
		if n++; n == costGroups/10 { // joining the group is behind it
			first, rest = time.Now(), costGroups-n
		}
		return n < costGroups
	})
	return float64(rest*costSize) / time.Since(first).Seconds()
}

// latency is, sorted and in milliseconds, how long each group's SampleGroup took.
func latency(b *testing.B, brokers []string, start func(*testing.B, *pipeline.Runtime) func()) []float64 {
	rt := costRun(b, brokers)
	cl := costClient(b, rt)
	traces := records(b, rt, costPaced+1)
	defer start(b, rt)()
	group := func(g int) time.Time {
		if err := cl.ProduceSync(b.Context(), traces[g*costSize:(g+1)*costSize]...).FirstErr(); err != nil {
			b.Fatal(err)
		}
		return time.Now()
	}
	group(costPaced) // the scorer is there when this one has come
	samples(b, rt, cl, func(*kgo.Record) bool { return false })
	acked := make(chan time.Time, costPaced)
	go func() {
		for g := range costPaced {
			acked <- group(g)
			time.Sleep(costPause) // the pace is what is asked for
		}
	}()
	var times []float64
	samples(b, rt, cl, func(*kgo.Record) bool {
		times = append(times, time.Since(<-acked).Seconds()*1000)
		return len(times) < costPaced
	})
	slices.Sort(times)
	return times
}

// transactional is the stage as it is.
func transactional(b *testing.B, rt *pipeline.Runtime) func() {
	p, err := pipeline.NewProcessor(rt, pipeline.ProcessorConfig{Stage: "scorer", Inputs: []string{pipeline.TopicTraces}, New: New(rt.Run, DefaultConfig(), 2)})
	if err != nil {
		b.Fatal(err)
	}
	return background(b, p.Run)
}

// plain is the same core without transactions.
func plain(b *testing.B, rt *pipeline.Runtime) func() {
	cl, err := rt.Client(kgo.ConsumerGroup(rt.TopicName("scorer")), kgo.ConsumeTopics(rt.TopicName(pipeline.TopicTraces)), kgo.DisableAutoCommit(),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		b.Fatal(err)
	}
	core, err := New(rt.Run, DefaultConfig(), 2)(0, nil)
	if err != nil {
		b.Fatal(err)
	}
	stop := background(b, func(ctx context.Context) error {
		for ctx.Err() == nil {
			var out pipeline.Out
			fetches := cl.PollRecords(ctx, 1000)
			for iter := fetches.RecordIter(); !iter.Done(); {
				rec, err := rt.Decode(ctx, iter.Next())
				if err == nil {
					err = core.Process(rec, &out)
				}
				if err != nil {
					return err
				}
			}
			var outputs []*kgo.Record
			for _, e := range out.Emitted {
				r, err := rt.Encode(ctx, e)
				if err != nil {
					return err
				}
				outputs = append(outputs, r)
			}
			if err := cl.ProduceSync(ctx, outputs...).FirstErr(); err != nil {
				return err
			}
			if err := cl.CommitUncommittedOffsets(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	return func() { stop(); cl.Close() }
}

func background(b *testing.B, run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(b.Context())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	return func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			b.Error(err)
		}
	}
}
