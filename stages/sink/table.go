package sink

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A Row is a Kafka record of one partition.
type Row struct {
	Offset     int64
	Time       time.Time
	Key, Value []byte
	Headers    []Header
}

// A Header is a header of a Kafka record.
type Header struct {
	Key   string
	Value []byte
}

func (r Row) size() int64 {
	n := int64(len(r.Key) + len(r.Value) + 64)
	for _, h := range r.Headers {
		n += int64(len(h.Key) + len(h.Value))
	}
	return n
}

// A table is a kind of record as Parquet: the columns of the record, then where Kafka had it. A record that cannot be
// read is a row, too: its bytes are in kafka_raw, kafka_error says why, and its other columns are empty.
type table struct {
	name   string
	record string // schema of the records; empty for dlq
	values columns
	row    reflect.Type
	schema *parquet.Schema
	decode func([]byte) (schemas.Record, error)
}

// position is the columns of every table.
type position struct {
	Topic     string    `parquet:"kafka_topic"` // without the run's prefix
	Partition int32     `parquet:"kafka_partition"`
	Offset    int64     `parquet:"kafka_offset,delta"`
	Time      time.Time `parquet:"kafka_time,timestamp(millisecond:local),delta"` // UTC
	Error     *string   `parquet:"kafka_error"`
	Raw       []byte    `parquet:"kafka_raw,optional"`
}

// deadLetter is the columns of dlq: what the key and the headers of a refused record say, and its bytes as they came.
type deadLetter struct {
	SourceTopic     string            `avro:"source_topic"`
	SourcePartition *int              `avro:"source_partition"`
	SourceOffset    *int64            `avro:"source_offset"`
	Stage           string            `avro:"stage"`
	Error           string            `avro:"error"`
	Key             []byte            `avro:"key"`
	Value           []byte            `avro:"value"`
	Headers         map[string][]byte `avro:"headers"` // the record's own
}

// tables are those of the topics, by name; each is made once.
var tables sync.Map

// tableOf is the table of a topic, given without the run's prefix; false where the topic is none of a run's.
func tableOf(topic string) (*table, bool) {
	spec, ok := pipeline.TopicOf(topic)
	if !ok {
		return nil, false
	}
	made, ok := tables.Load(spec.Name)
	if !ok {
		made, _ = tables.LoadOrStore(spec.Name, newTable(spec))
	}
	t := *made.(*table)
	return &t, true
}

func newTable(spec pipeline.Topic) *table {
	t := &table{name: strings.TrimSuffix(spec.Name, "."), record: spec.Record, decode: schemas.Decode}
	record := reflect.TypeFor[deadLetter]()
	if t.record != "" {
		record = reflect.TypeOf(schemas.New(t.record)).Elem()
	}
	t.values = columnsOf(record)
	fields := reflect.VisibleFields(t.values.Type)
	t.row = reflect.StructOf(append(fields[:len(fields):len(fields)], renamed(reflect.VisibleFields(reflect.TypeFor[position]()))...))
	t.schema = parquet.SchemaOf(reflect.New(t.row).Interface())
	return t
}

// renamed keeps the position's fields from clashing with a record's.
func renamed(fields []reflect.StructField) []reflect.StructField {
	for i := range fields {
		fields[i].Name = "Kafka" + fields[i].Name
	}
	return fields
}

// write puts rows into a Parquet file with the given metadata. It returns how many of them could not be read; while that
// is not known, ErrTransient.
func (t *table) write(w io.Writer, topic string, partition int32, rows []Row, metadata map[string]string) (unreadable int, err error) {
	options := []parquet.WriterOption{t.schema, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("prl", "sink", ""), parquet.DictionaryMaxBytes(maxDictionary)}
	for k, v := range metadata {
		options = append(options, parquet.KeyValueMetadata(k, v))
	}
	out := rowWriters[t.record](w, options...)
	for _, r := range rows {
		err := t.fill(out.next(), topic, partition, r)
		if errors.Is(err, pipeline.ErrTransient) {
			return unreadable, fmt.Errorf("read %s/%d@%d: %w", topic, partition, r.Offset, err)
		}
		if err != nil {
			unreadable++
		}
		if err := out.add(len(r.Value)); err != nil {
			return unreadable, fmt.Errorf("write %s/%d to @%d as Parquet: %w", topic, partition, r.Offset, err)
		}
	}
	if err := out.close(); err != nil {
		return unreadable, fmt.Errorf("end the Parquet file of %s/%d: %w", topic, partition, err)
	}
	return unreadable, nil
}

// fill makes a row of a record. The error says that the record cannot be read, as the row does.
func (t *table) fill(row reflect.Value, topic string, partition int32, r Row) error {
	at := position{Topic: topic, Partition: partition, Offset: r.Offset, Time: r.Time.UTC()}
	v, err := t.read(r)
	if err == nil {
		t.values.set(row, v)
	} else {
		row.SetZero()
		at.Error, at.Raw = new(readable(err.Error())), r.Value
	}
	first := t.values.Type.NumField()
	for i, v := 0, reflect.ValueOf(&at).Elem(); i < v.NumField(); i++ {
		row.Field(first + i).Set(v.Field(i))
	}
	return err
}

// read decodes a record. Tensors in the blob store stay there; the column blobs names them.
func (t *table) read(r Row) (reflect.Value, error) {
	if t.record == "" {
		return reflect.ValueOf(readDeadLetter(r)), nil
	}
	v, err := t.decode(r.Value)
	if err != nil {
		return reflect.Value{}, err
	}
	if v.SchemaName() != t.record {
		return reflect.Value{}, fmt.Errorf("a %s does not belong on this topic", v.SchemaName())
	}
	return reflect.ValueOf(v).Elem(), nil
}

func readDeadLetter(r Row) deadLetter {
	d := deadLetter{Value: r.Value, Headers: map[string][]byte{}}
	source := strings.Split(string(r.Key), "/")
	if n := len(source) - 2; n > 0 {
		if p, err := strconv.Atoi(source[n]); err == nil {
			d.SourcePartition = &p
		}
		if o, err := strconv.ParseInt(source[n+1], 10, 64); err == nil {
			d.SourceOffset = &o
		}
		d.SourceTopic = strings.Join(source[:n], "/")
	}
	for _, h := range r.Headers {
		switch h.Key {
		case "prl-stage":
			d.Stage = string(h.Value)
		case "prl-error":
			d.Error = string(h.Value)
		case "prl-key":
			d.Key = h.Value
		default:
			d.Headers[h.Key] = h.Value
		}
	}
	return d
}

// fingerprint names the table's columns.
func (t *table) fingerprint() string {
	h := fnv.New64a()
	io.WriteString(h, t.schema.String()) //nolint:errcheck // a hash takes everything
	return fmt.Sprintf("%016x", h.Sum64())
}
