package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// injectedHeader marks the records of the harness, for the auditor; no stage looks at it. A record of dlq has the headers
// of the one it tells of behind those of the stage that wrote it.
const injectedHeader = "chaos"

func injected(r *kgo.Record) bool {
	return len(r.Headers) > 0 && r.Headers[0].Key == injectedHeader
}

// maxKept bounds the records that are kept to be written again: that many new ones, and that many of all times.
const maxKept = 500

// An injector writes records that the world, or a program gone wrong, could write.
type injector struct {
	cl *kgo.Client
	rt *pipeline.Runtime
	// open are topics where anything may be found; a reader of each sends what it cannot read to dlq, or passes it over.
	open []string

	mu    sync.Mutex
	seen  int64
	fresh []*kgo.Record // newest
	old   []*kgo.Record // a sample of all
	rng   *rand.Rand    // of the sample
	bad   []string      // where records stand that must be in dlq
	count map[Kind]int
}

func newInjector(rt *pipeline.Runtime, env string) (*injector, error) {
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.ProducerBatchMaxBytes(64<<20), kgo.BrokerMaxWriteBytes(100<<20))
	if err != nil {
		return nil, err
	}
	in := &injector{cl: cl, rt: rt, rng: rand.New(rand.NewPCG(1, 1)), count: map[Kind]int{}}
	for _, t := range append(allTopics(), pipeline.TopicTasks(env)) {
		if t != pipeline.TopicBatches && t != pipeline.TopicDLQ {
			in.open = append(in.open, t)
		}
	}
	return in, nil
}

// keep takes a record that was written by a stage.
func (in *injector) keep(r *kgo.Record) {
	if injected(r) {
		return
	}
	c := &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.seen++
	in.fresh = append(in.fresh, c)
	if len(in.fresh) > maxKept {
		in.fresh = in.fresh[1:]
	}
	if len(in.old) < maxKept {
		in.old = append(in.old, c)
	} else if i := in.rng.Int64N(in.seen); i < maxKept {
		in.old[i] = c
	}
}

// inject does what a fault of kind k says.
func (in *injector) inject(ctx context.Context, k Kind, seed uint64) error {
	rng := rand.New(rand.NewPCG(seed, 0))
	in.mu.Lock()
	fresh, old := in.fresh, append([]*kgo.Record(nil), in.old...)
	in.mu.Unlock()
	var recs []*kgo.Record
	bad := true
	switch k {
	case Duplicate, Reorder:
		recs, bad = replay(k, rng, fresh, old), false
	case Truncate:
		recs = truncated(rng, fresh)
	case FalseClaim:
		recs = falseClaims(rng, fresh)
	case Garbage:
		for range 1 + rng.IntN(5) {
			r := in.garbage(rng, 1+rng.IntN(2000))
			if rng.IntN(4) == 0 {
				r.Value = nil
			}
			recs = append(recs, r)
		}
		if rng.IntN(2) == 0 {
			recs = append(recs, in.misplaced(rng))
		}
	case Oversize:
		if err := in.tooLarge(ctx, in.garbage(rng, pipeline.TopicRecordBytes+1<<10)); err != nil {
			return err
		}
		recs = []*kgo.Record{in.garbage(rng, pipeline.TopicRecordBytes-2<<10)}
	default:
		return fmt.Errorf("%s is nothing to inject", k)
	}
	return in.write(ctx, k, recs, bad)
}

// replay is duplicates of records of stages that may write twice: environment servers, whose producer is not part of a
// transaction. The newest come again in order; old ones out of it.
func replay(k Kind, rng *rand.Rand, fresh, old []*kgo.Record) (recs []*kgo.Record) {
	from := fresh
	if k == Reorder {
		from = old
	}
	if len(from) == 0 {
		return nil
	}
	first := rng.IntN(len(from))
	for i := range 1 + rng.IntN(20) {
		r := from[(first+i)%len(from)]
		if k == Reorder {
			r = from[rng.IntN(len(from))]
		}
		recs = append(recs, copyOf(r))
	}
	return recs
}

// truncated is records that end too early.
func truncated(rng *rand.Rand, fresh []*kgo.Record) (recs []*kgo.Record) {
	for range min(len(fresh), 1+rng.IntN(5)) {
		r := copyOf(fresh[rng.IntN(len(fresh))])
		r.Value = r.Value[:rng.IntN(len(r.Value))]
		recs = append(recs, r)
	}
	return recs
}

// falseClaims is traces whose tensors would be in the blob store, and are not.
func falseClaims(rng *rand.Rand, fresh []*kgo.Record) (recs []*kgo.Record) {
	for range min(len(fresh), 1+rng.IntN(3)) {
		r := copyOf(fresh[rng.IntN(len(fresh))])
		t, err := schemas.DecodeAs[*schemas.Trace](r.Value)
		if err != nil || len(t.Nodes) == 0 {
			continue
		}
		lengths := []int64{int64(len(t.Nodes[0].TokenIDs)), 0, 1 << 40, -1}
		sha := fmt.Sprintf("%064x", rng.Uint64())
		t.Blobs = append(t.Blobs, schemas.BlobRef{Path: "nodes.0.token_ids", URI: "tensors/" + sha, Bytes: lengths[rng.IntN(len(lengths))], SHA256: sha})
		t.Nodes[0].TokenIDs = nil
		if r.Value, err = schemas.Encode(t); err == nil {
			recs = append(recs, r)
		}
	}
	return recs
}

// garbage is random bytes on any topic, under a key that names nothing.
func (in *injector) garbage(rng *rand.Rand, size int) *kgo.Record {
	topic := in.open[rng.IntN(len(in.open))]
	value := make([]byte, size)
	for i := range value {
		value[i] = byte(rng.Uint32())
	}
	return &kgo.Record{
		Topic: in.rt.TopicName(topic), Partition: rng.Int32N(in.rt.Partitions(topic)),
		Key: fmt.Appendf(nil, "chaos-%d", rng.Uint32()), Value: value,
	}
}

// misplaced is a record that belongs on another topic.
func (in *injector) misplaced(rng *rand.Rand) *kgo.Record {
	r := in.garbage(rng, 1)
	var err error
	r.Value, err = schemas.Encode(&schemas.MetricPoint{Name: "chaos", Stage: "chaos", Value: 1})
	if err != nil || in.rt.BaseName(r.Topic) == pipeline.TopicMetrics {
		r.Value = []byte{0}
	}
	return r
}

func copyOf(r *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value}
}

// injectDeadline bounds a write, broker restarts included.
const injectDeadline = time.Minute

func (in *injector) write(ctx context.Context, k Kind, recs []*kgo.Record, bad bool) error {
	ctx, cancel := context.WithTimeout(ctx, injectDeadline)
	defer cancel()
	for _, r := range recs {
		r.Headers = []kgo.RecordHeader{{Key: injectedHeader, Value: []byte(k)}}
		err := in.cl.ProduceSync(ctx, r).FirstErr()
		for err != nil && ctx.Err() == nil {
			time.Sleep(200 * time.Millisecond) // the broker is away
			err = in.cl.ProduceSync(ctx, r).FirstErr()
		}
		if err != nil {
			return fmt.Errorf("inject into %s/%d: %w", r.Topic, r.Partition, err)
		}
		in.mu.Lock()
		in.count[k]++
		if topic := in.rt.BaseName(r.Topic); bad && toDLQ(topic) {
			in.bad = append(in.bad, fmt.Sprintf("%s/%d/%d", topic, r.Partition, r.Offset))
		}
		in.mu.Unlock()
	}
	return nil
}

// toDLQ reports whether a topic is an input of a stage that sends what it cannot read to dlq. Tables and the sink pass it
// over.
func toDLQ(topic string) bool {
	switch topic {
	case pipeline.TopicTraces, pipeline.TopicEvalTraces, pipeline.TopicSamples, pipeline.TopicOutcomes, pipeline.TopicRequests:
		return true
	}
	_, ok := pipeline.EnvOfTasks(topic)
	return ok
}

// tooLarge writes a record above the limit, which the broker must not take.
func (in *injector) tooLarge(ctx context.Context, r *kgo.Record) error {
	ctx, cancel := context.WithTimeout(ctx, injectDeadline)
	defer cancel()
	if in.cl.ProduceSync(ctx, r).FirstErr() == nil {
		return fmt.Errorf("a record of %d bytes was taken by %s, whose limit is %d", len(r.Value), r.Topic, pipeline.TopicRecordBytes)
	}
	return nil
}

// mustBeRefused are the places of the records that must be in dlq.
func (in *injector) mustBeRefused() []string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return append([]string(nil), in.bad...)
}

// written is how many records were injected, by kind.
func (in *injector) written(k Kind) int {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.count[k]
}
