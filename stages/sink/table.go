package sink

import (
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"reflect"
	"strconv"
	"strings"
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
	decode func([]byte) (schemas.Record, error)
	values columns
	row    reflect.Type
	schema *parquet.Schema
}

// position is the columns of every table.
type position struct {
	Topic     string    `parquet:"kafka_topic"` // without the run's prefix
	Partition int32     `parquet:"kafka_partition"`
	Offset    int64     `parquet:"kafka_offset"`
	Time      time.Time `parquet:"kafka_time,timestamp(millisecond:local)"` // UTC
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

// tableOf is the table of a topic, given without the run's prefix; false where the topic is none of a run's.
func tableOf(topic string) (*table, bool) {
	spec, ok := pipeline.TopicOf(topic)
	if !ok {
		return nil, false
	}
	t := &table{name: strings.TrimSuffix(spec.Name, "."), record: spec.Record, decode: schemas.Decode}
	if t.record == "" {
		t.values = columnsOf(reflect.TypeFor[deadLetter]())
	} else {
		t.values = columnsOf(reflect.TypeOf(schemas.New(t.record)).Elem())
	}
	fields := reflect.VisibleFields(t.values.Type)
	t.row = reflect.StructOf(append(fields[:len(fields):len(fields)], renamed(reflect.VisibleFields(reflect.TypeFor[position]()))...))
	t.schema = parquet.SchemaOf(reflect.New(t.row).Interface())
	return t, true
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
	options := []parquet.WriterOption{t.schema, parquet.Compression(&zstd.Codec{}), parquet.CreatedBy("prl", "sink", "")}
	for k, v := range metadata {
		options = append(options, parquet.KeyValueMetadata(k, v))
	}
	out := parquet.NewGenericWriter[any](w, options...)
	for _, r := range rows {
		at := position{Topic: topic, Partition: partition, Offset: r.Offset, Time: r.Time.UTC()}
		row := reflect.New(t.row)
		if err := t.fill(row.Elem(), r); errors.Is(err, pipeline.ErrTransient) {
			return unreadable, fmt.Errorf("read %s/%d@%d: %w", topic, partition, r.Offset, err)
		} else if err != nil {
			unreadable++
			row.Elem().SetZero()
			at.Error, at.Raw = new(readable(err.Error())), r.Value
		}
		first := t.values.Type.NumField()
		for i, v := 0, reflect.ValueOf(at); i < v.NumField(); i++ {
			row.Elem().Field(first + i).Set(v.Field(i))
		}
		if _, err := out.Write([]any{row.Interface()}); err != nil {
			return unreadable, fmt.Errorf("write %s/%d@%d as Parquet: %w", topic, partition, r.Offset, err)
		}
	}
	if err := out.Close(); err != nil {
		return unreadable, fmt.Errorf("end the Parquet file of %s/%d: %w", topic, partition, err)
	}
	return unreadable, nil
}

// fill sets the columns of the record's values. Tensors in the blob store stay there; the column blobs names them.
func (t *table) fill(row reflect.Value, r Row) error {
	src := reflect.ValueOf(readDeadLetter(r))
	if t.record != "" {
		v, err := t.decode(r.Value)
		if err != nil {
			return err
		}
		if v.SchemaName() != t.record {
			return fmt.Errorf("a %s does not belong on this topic", v.SchemaName())
		}
		src = reflect.ValueOf(v).Elem()
	}
	values := reflect.New(t.values.Type).Elem()
	t.values.set(values, src)
	for i := range values.NumField() {
		row.Field(i).Set(values.Field(i))
	}
	return nil
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
