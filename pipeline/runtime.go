package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"

	"github.com/prl-project/prl/pipeline/faults"
	"github.com/prl-project/prl/pipeline/tracing"
	"github.com/prl-project/prl/schemas"
)

const (
	// MaxRecordBytes is the size above which a record's tensors go to the blob store: a group of eight rollouts of 64k tokens is
	// below it, since a disk and a SHA-256 take several times as long as the brokers.
	MaxRecordBytes = 12 << 20
	// TopicRecordBytes is max.message.bytes of every topic.
	TopicRecordBytes = 16 << 20
	// requestDeadline bounds every single wait for the broker.
	requestDeadline = 10 * time.Second
	// metadataMinAge is how old metadata must be to be asked for again. Records that are to be tried again wait for it, and
	// a transaction waits for them; kgo's 5 s is longer than one may take.
	metadataMinAge = 20 * time.Millisecond
	// fetchWait is how long a broker keeps a fetch that finds nothing. A partition that comes meanwhile waits for it.
	fetchWait = 500 * time.Millisecond
)

// Runtime is what every stage of a process shares: the run, the brokers, the blob store, logs and metrics.
type Runtime struct {
	Run      RunConfig
	Brokers  []string
	Kafka    KafkaConfig // how the brokers and this process know each other
	Instance string      // name that survives restarts
	Leave    bool        // a stop gives the partitions up for good
	Joins    bool        // the run is another's to begin: SetUp makes no topics
	Blobs    *Blobs
	Scratch  string // folder for files in the making, on the disk of the blobs where they are on one
	Log      *slog.Logger
	Metrics  *Metrics
	Registry prometheus.Registerer // for metrics of a stage's own
	Health   *Health
	// Tracing follows rollouts through the stages; nil where nothing is traced.
	Tracing *tracing.Tracer
	// Faults are those that the stages of the process have (OpenFaults); nil for a Runtime that only logs them.
	Faults *faults.Desk
	untold *untold
	watch  *brokerWatch
	// Schemas gives records the ids of a schema registry; nil without one.
	Schemas *SchemaRegistry
	// Options are further ones for every client, over its own. Tests put clients on a network in memory with them.
	Options []kgo.Opt
}

// Client makes a Kafka client for the run's brokers.
func (rt *Runtime) Client(opts ...kgo.Opt) (*kgo.Client, error) {
	base := []kgo.Opt{
		kgo.SeedBrokers(rt.Brokers...),
		kgo.ClientID("prl/" + rt.Run.Name + "/" + rt.Instance),
		kgo.ProducerBatchMaxBytes(TopicRecordBytes),
		kgo.FetchMaxPartitionBytes(TopicRecordBytes + 1<<20),
		kgo.FetchMaxWait(fetchWait),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.RetryTimeout(requestDeadline),
		kgo.MetadataMinAge(metadataMinAge),
	}
	secured, err := rt.Kafka.options()
	if err != nil {
		return nil, Fatal("make a Kafka client for %s: %w", strings.Join(rt.Brokers, ","), err)
	}
	base = append(base, secured...)
	if rt.Metrics != nil {
		base = append(base, kgo.WithHooks(rt.Metrics.broker))
	}
	if rt.watch != nil {
		base = append(base, kgo.WithHooks(rt.watch))
	}
	cl, err := kgo.NewClient(slices.Concat(base, opts, rt.Options)...)
	if err != nil {
		return nil, fmt.Errorf("make a Kafka client for %s: %w", strings.Join(rt.Brokers, ","), err)
	}
	return cl, nil
}

// TopicName is the full name of a topic of this run.
func (rt *Runtime) TopicName(name string) string { return rt.Run.Name + "." + name }

// BaseName is a topic's name without the run's prefix.
func (rt *Runtime) BaseName(topic string) string {
	return strings.TrimPrefix(topic, rt.Run.Name+".")
}

// Partitions is the number of partitions of a topic.
func (rt *Runtime) Partitions(name string) int32 {
	switch {
	case name == TopicTraces:
		return int32(rt.Run.TracePartitions)
	case name == TopicBatches:
		return int32(rt.Run.Ranks)
	case name == TopicState:
		return int32(len(StateStages))
	case strings.HasPrefix(name, tasksPrefix):
		return int32(rt.Run.TaskPartitions)
	}
	return 1
}

// Encode turns an emission into a Kafka record. Tensors that would make it too large go to the blob store first, the
// largest first, until it fits.
func (rt *Runtime) Encode(ctx context.Context, e Emission) (*kgo.Record, error) {
	return rt.encodeTelling(ctx, e, nil)
}

// encodeTelling is Encode that calls mayWait before it waits for the blob store, unless that is nil.
func (rt *Runtime) encodeTelling(ctx context.Context, e Emission, mayWait func() error) (*kgo.Record, error) {
	topic, ok := TopicOf(e.Topic)
	if !ok || topic.Record != e.Value.SchemaName() {
		return nil, Fatal("a %s was emitted to topic %s", e.Value.SchemaName(), e.Topic)
	}
	value, err := rt.encode(e.Value)
	if err != nil {
		return nil, Fatal("%s: %w", e.Topic, err)
	}
	if size := len(value); size > MaxRecordBytes {
		if mayWait != nil {
			if err := mayWait(); err != nil {
				return nil, err
			}
		}
		if value, err = rt.claimCheck(ctx, e.Value, size); err != nil {
			return nil, fmt.Errorf("%s: record of %d bytes: %w", e.Topic, size, err)
		}
	}
	r := rt.address(e, topic, value)
	if rt.Tracing != nil {
		rt.carry(r, e.Value)
	}
	return r, nil
}

// address makes the Kafka record of an emission with its key and partition.
func (rt *Runtime) address(e Emission, topic Topic, value []byte) *kgo.Record {
	r := &kgo.Record{Topic: rt.TopicName(e.Topic), Key: []byte(topic.Key(e.Value)), Value: value, Partition: e.Partition}
	if e.Partition == AutoPartition {
		r.Partition = 0
		if topic.Partition != nil {
			r.Partition = topic.Partition(e.Value, rt.Partitions(e.Topic))
		}
	}
	return r
}

// encode gives the bytes of a record: in Confluent's framing with a schema registry, else in Avro single-object encoding.
func (rt *Runtime) encode(v schemas.Record) ([]byte, error) {
	if rt.Schemas != nil {
		return rt.Schemas.encode(v)
	}
	return schemas.Encode(v)
}

// DecodeValue reads the bytes of a record in either framing. Its tensors in the blob store stay there.
func (rt *Runtime) DecodeValue(ctx context.Context, b []byte) (schemas.Record, error) {
	id, body, err := new(sr.ConfluentHeader).DecodeID(b)
	if err != nil {
		return schemas.Decode(b)
	}
	if rt.Schemas == nil {
		return nil, fmt.Errorf("it is in Confluent's framing (schema id %d), and schema_registry.urls names no registry", id)
	}
	version, err := rt.Schemas.version(ctx, id)
	if err != nil {
		return nil, err
	}
	return version.Decode(body)
}

// Decode reads a Kafka record of one of the run's topics, tensors of the blob store included. Unless it is ErrTransient, or
// ctx has ended, an error says that the record is poison.
func (rt *Runtime) Decode(ctx context.Context, r *kgo.Record) (Record, error) {
	return rt.decodeTelling(ctx, r, nil)
}

// decodeTelling is Decode that calls mayWait before it waits for the blob store, unless that is nil.
func (rt *Runtime) decodeTelling(ctx context.Context, r *kgo.Record, mayWait func() error) (Record, error) {
	rec := rt.coordinates(r)
	v, err := rt.DecodeValue(ctx, r.Value)
	if err != nil {
		return rec, err
	}
	topic, ok := TopicOf(rec.Topic)
	if !ok || topic.Record != v.SchemaName() {
		return rec, fmt.Errorf("a %s does not belong on topic %s", v.SchemaName(), rec.Topic)
	}
	if rt.Blobs != nil { // who only looks on may have no store
		if mayWait != nil && claims(v) {
			if err := mayWait(); err != nil {
				return rec, fmt.Errorf("%w: %w", ErrTransient, err)
			}
		}
		if err := rt.Redeem(ctx, v); err != nil {
			return rec, err
		}
	}
	rec.Value = v
	return rec, nil
}

func (rt *Runtime) coordinates(r *kgo.Record) Record {
	return Record{Ref: Ref{Topic: rt.BaseName(r.Topic), Partition: r.Partition, Offset: r.Offset}, Key: string(r.Key), Trace: rt.from(r)}
}
