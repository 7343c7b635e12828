package sink

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// benchTopics are the topics with most of a run's records, and how many of them a file of the benchmarks has.
var benchTopics = []struct {
	topic string
	rows  int64
}{
	{pipeline.TopicTraces, 512}, {pipeline.TopicSamples, 64}, {pipeline.TopicBatches, 32},
	{pipeline.TopicOutcomes, 20_000}, {pipeline.TopicTasks("wordle"), 20_000}, {pipeline.TopicMetrics, 50_000},
}

// BenchmarkWrite turns records into files: rows and bytes of records per second, bytes of the file for each byte of records,
// allocations for each row.
func BenchmarkWrite(b *testing.B) {
	for _, of := range benchTopics {
		b.Run(tableName(of.topic), func(b *testing.B) {
			rows, size := lifelikeRows(b, of.topic, of.rows)
			table, _ := tableOf(of.topic)
			measured(b, of.rows, size, func(w io.Writer) {
				writeAll(b, w, table, of.topic, rows)
			})
		})
	}
}

func writeAll(t testing.TB, w io.Writer, table *table, topic string, rows []Row) {
	t.Helper()
	if unreadable, err := table.write(w, topic, 0, rows, nil); err != nil || unreadable > 0 {
		t.Fatalf("%d records of %s cannot be read: %v", unreadable, topic, err)
	}
}

// BenchmarkPlain is the yardstick: parquet-go alone writes the same rows, which lie there as Go structs, with the same codec.
func BenchmarkPlain(b *testing.B) {
	b.Run("traces", plain[traceRow])
	b.Run("outcomes", plain[groupOutcomeRow])
}

func plain[T any](b *testing.B) {
	for _, of := range benchTopics {
		if b.Name() != "BenchmarkPlain/"+of.topic {
			continue
		}
		rows, size := plainRows[T](b, of.topic, of.rows)
		measured(b, of.rows, size, func(w io.Writer) { writePlain(b, w, rows) })
	}
}

// plainRows are what the sink's file of lifelike records holds, and the bytes of those.
func plainRows[T any](t testing.TB, topic string, n int64) ([]T, int64) {
	t.Helper()
	records, size := lifelikeRows(t, topic, n)
	table, _ := tableOf(topic)
	var file bytes.Buffer
	writeAll(t, &file, table, topic, records)
	read, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		t.Fatal(err)
	}
	rows := make([]T, n)
	for i, row := range rowsIn(t, read) {
		if err := parquet.SchemaOf(new(T)).Reconstruct(&rows[i], row); err != nil {
			t.Fatal(err)
		}
	}
	return rows, size
}

func writePlain[T any](t testing.TB, w io.Writer, rows []T) {
	t.Helper()
	out := parquet.NewGenericWriter[T](w, parquet.Compression(&zstd.Codec{}), parquet.DictionaryMaxBytes(maxDictionary))
	if _, err := out.Write(rows); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
}

// measured writes files and reports what they cost.
func measured(b *testing.B, rows, size int64, write func(io.Writer)) {
	var file counter
	b.SetBytes(size)
	b.ReportAllocs()
	for b.Loop() {
		file = 0
		write(&file)
	}
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(size)*float64(b.N)/1e6/b.Elapsed().Seconds(), "record-MB/s")
	b.ReportMetric(float64(file)/float64(size), "file/record")
}

// A counter counts what is written to it.
type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

func tableName(topic string) string {
	t, _ := tableOf(topic)
	return t.name
}

// stageTraces is how many traces wait for the whole stage: four files of the default size.
const stageTraces = 6000

// fullTopic is a run whose traces wait for a sink, and their bytes.
func fullTopic(b *testing.B) (*pipeline.Runtime, int64) {
	b.Helper()
	rt := newRun(b)
	cl := client(b, rt)
	l, size := newLifelike(), int64(0)
	for from := int64(0); from < stageTraces; from += 500 {
		var recs []*kgo.Record
		for i := from; i < from+500; i++ {
			rec, err := rt.Encode(b.Context(), pipeline.Emission{Topic: pipeline.TopicTraces, Partition: pipeline.AutoPartition, Value: l.trace(i % 500)})
			if err != nil {
				b.Fatal(err)
			}
			size += int64(len(rec.Value))
			recs = append(recs, rec)
		}
		if err := cl.ProduceSync(b.Context(), recs...).FirstErr(); err != nil {
			b.Fatal(err)
		}
	}
	return rt, size
}

// BenchmarkStage is the whole stage at work on a topic that is full, from its start to its end: the files are on the disk.
func BenchmarkStage(b *testing.B) {
	rt, size := fullTopic(b)
	perSecond(b, stageTraces, size, func() {
		cfg := config(b.TempDir())
		cfg.Drain = pipeline.Duration(time.Minute)
		runToEnd(b, rt, cfg)
	})
}

// BenchmarkConsume is its yardstick: a plain consumer reads the same topic from the same broker.
func BenchmarkConsume(b *testing.B) {
	rt, size := fullTopic(b)
	perSecond(b, stageTraces, size, func() {
		from := map[int32]kgo.Offset{}
		for p := range rt.Partitions(pipeline.TopicTraces) {
			from[p] = kgo.NewOffset().AtStart()
		}
		cl, err := rt.Client(kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{rt.TopicName(pipeline.TopicTraces): from}))
		if err != nil {
			b.Fatal(err)
		}
		defer cl.Close()
		ctx, cancel := context.WithTimeout(b.Context(), testDeadline)
		defer cancel()
		for n := 0; n < stageTraces; {
			fetches := cl.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				b.Fatal(err)
			}
			n += fetches.NumRecords()
		}
	})
}

func perSecond(b *testing.B, rows, size int64, work func()) {
	b.SetBytes(size)
	for b.Loop() {
		work()
	}
	b.ReportMetric(float64(rows)*float64(b.N)/b.Elapsed().Seconds(), "rows/s")
	b.ReportMetric(float64(size)*float64(b.N)/1e6/b.Elapsed().Seconds(), "record-MB/s")
}

// The yardstick's rows are the sink's.
func TestPlainRowsAreTheSame(t *testing.T) {
	same[traceRow](t, pipeline.TopicTraces, 20)
	same[groupOutcomeRow](t, pipeline.TopicOutcomes, 100)
}

func same[T any](t *testing.T, topic string, n int64) {
	t.Helper()
	table, _ := tableOf(topic)
	rows, _ := plainRows[T](t, topic, n)
	var file bytes.Buffer
	writePlain(t, &file, rows)
	read, err := parquet.OpenFile(bytes.NewReader(file.Bytes()), int64(file.Len()))
	if err != nil {
		t.Fatal(err)
	}
	records, _ := lifelikeRows(t, topic, n)
	for i, row := range rowsIn(t, read) {
		s, err := table.stored(row)
		if err != nil || s.Err != nil {
			t.Fatalf("%s: record %d cannot be read: %v", topic, i, errors.Join(err, s.Err))
		}
		got, err := schemas.Encode(s.Value)
		if err != nil || !bytes.Equal(got, records[i].Value) || s.Offset != records[i].Offset {
			t.Fatalf("%s: record %d is another: %+v, %v", topic, i, s.Value, err)
		}
	}
}

func rowsIn(t testing.TB, file *parquet.File) []parquet.Row {
	t.Helper()
	r := parquet.NewGenericReader[any](file)
	defer r.Close()
	rows := make([]parquet.Row, file.NumRows())
	if n, err := r.ReadRows(rows); n != len(rows) {
		t.Fatalf("%d of %d rows: %v", n, len(rows), err)
	}
	for i := range rows {
		rows[i] = rows[i].Clone()
	}
	return rows
}
