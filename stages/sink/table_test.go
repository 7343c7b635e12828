package sink

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/parquet-go/parquet-go"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

var topicID = [16]byte{0xAB, 1}

// row is a record at an offset, encoded as on its topic.
func row(t testing.TB, offset int64, r schemas.Record) Row {
	t.Helper()
	b, err := schemas.Encode(r)
	if err != nil {
		t.Fatal(err)
	}
	return Row{Offset: offset, Time: time.UnixMilli(1_700_000_000_123 + offset), Value: b}
}

// read gives the rows of a topic's files, by column, in the order of the files' names.
func read(t testing.TB, dir, topic string) []map[string]any {
	t.Helper()
	spec, ok := tableOf(topic)
	if !ok {
		t.Fatalf("no table for topic %s", topic)
	}
	paths, err := filepath.Glob(filepath.Join(dir, spec.name, topic+"-*.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	var rows []map[string]any
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		r := parquet.NewReader(bytes.NewReader(b), spec.schema)
		for {
			v := reflect.New(spec.row)
			if err := r.Read(v.Interface()); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			rows = append(rows, byColumn(v.Elem()))
		}
	}
	return rows
}

// byColumn is a struct by its columns' names, with null as nil and pointers followed.
func byColumn(v reflect.Value) map[string]any {
	out := map[string]any{}
	for i := range v.NumField() {
		name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("parquet"), ",")
		f := v.Field(i)
		if f.Kind() == reflect.Pointer {
			if f.IsNil() {
				out[name] = nil
				continue
			}
			f = f.Elem()
		}
		out[name] = f.Interface()
	}
	return out
}

func write(t testing.TB, dir, topic string, rows ...Row) {
	t.Helper()
	c, err := OpenChain(dir, topic, topicID, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rows {
		if err := c.Append(r, time.Now()); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Flush(); err != nil {
		t.Fatal(err)
	}
}

// A new field of a record becomes a column by itself: the columns are the schema's fields, in its order.
func TestTable_ColumnsFollowTheSchemas(t *testing.T) {
	for _, spec := range pipeline.Topics {
		table, ok := tableOf(spec.Name)
		if !ok {
			t.Fatalf("no table for %s", spec.Name)
		}
		if spec.Record == "" {
			continue
		}
		var want []string
		record := reflect.TypeOf(schemas.New(spec.Record)).Elem()
		for i := range record.NumField() {
			want = append(want, record.Field(i).Tag.Get("avro"))
		}
		want = append(want, "kafka_topic", "kafka_partition", "kafka_offset", "kafka_time", "kafka_error", "kafka_raw")
		var got []string
		for _, f := range table.schema.Fields() {
			got = append(got, f.Name())
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: columns %v, want %v", spec.Name, got, want)
		}
	}
}

func TestTable_SchemaOfTraces(t *testing.T) {
	table, _ := tableOf(pipeline.TopicTraces)
	got := table.schema.String()
	for _, want := range []string{
		"required group rewards (MAP)", "optional double value", "required group token_ids (LIST)", "required float element",
		"optional int64 pin_version", "required group timing", "required int32 group_size", "required boolean truncated",
		"required binary task (STRING)", "required int64 kafka_time (TIMESTAMP(isAdjustedToUTC=false,unit=MILLIS))", "optional binary kafka_raw",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the schema lacks %q:\n%s", want, got)
		}
	}
}

func TestTable_Values(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "traces", row(t, 7, &schemas.Trace{
		Env: "wordle", GroupSize: 2, Task: `{"word":"crane","unknown":{"x":1}}`, PolicyStart: new(int64(3)), Reward: new(0.5),
		Rewards: map[string]*float64{"green": new(0.5), "valid": nil},
		Nodes: []schemas.Node{
			{Parent: -1, Role: "user", Content: "cut \xe2\x98"},
			{Parent: 0, Role: "assistant", TokenIDs: schemas.PackInt32s([]int32{5, -6}), Mask: []byte{0, 1},
				Logprobs: schemas.PackFloat32s([]float32{0, -1.5}), ToolCalls: []schemas.ToolCall{{Name: "guess", Arguments: "{}"}}},
		},
		Blobs: []schemas.BlobRef{{Path: "nodes.0.mask", URI: "tensors/x"}},
	}))
	rows := read(t, dir, "traces")
	if len(rows) != 1 {
		t.Fatalf("%d rows", len(rows))
	}
	for column, want := range map[string]string{
		"env": "wordle", "task": `{"word":"crane","unknown":{"x":1}}`, "policy_start": "3", "policy_end": "<nil>", "reward": "0.5",
		"kafka_topic": "traces", "kafka_offset": "7", "kafka_error": "<nil>",
	} {
		if got := fmt.Sprint(rows[0][column]); got != want {
			t.Errorf("%s = %s, want %s", column, got, want)
		}
	}
	nodes := fmt.Sprint(rows[0]["nodes"])
	for _, want := range []string{"cut \uFFFD", "[5 -6]", "[0 1]", "[0 -1.5]", "guess"} {
		if !strings.Contains(nodes, want) {
			t.Errorf("nodes lack %q: %s", want, nodes)
		}
	}
	if got := fmt.Sprint(rows[0]["rewards"]); !strings.Contains(got, "green") || !strings.Contains(got, "valid") || !strings.Contains(got, "<nil>") {
		t.Errorf("rewards = %s", got)
	}
}

// Bad input stops nothing: the record is a row that holds its bytes and says what is wrong.
func TestTable_UnreadableRecords(t *testing.T) {
	dir := t.TempDir()
	wrong := row(t, 1, &schemas.MetricPoint{Name: "loss", Value: math.NaN()})
	write(t, dir, "samples", Row{Offset: 0, Value: []byte("garbage")}, wrong,
		row(t, 2, &schemas.SampleGroup{Env: "catch", Reason: schemas.FateStale}))
	rows := read(t, dir, "samples")
	if len(rows) != 3 {
		t.Fatalf("%d rows of 3", len(rows))
	}
	if got := fmt.Sprint(rows[0]["kafka_error"]); !strings.Contains(got, "single-object") || !bytes.Equal(rows[0]["kafka_raw"].([]byte), []byte("garbage")) {
		t.Errorf("garbage: %v", rows[0])
	}
	if got := fmt.Sprint(rows[1]["kafka_error"]); !strings.Contains(got, "MetricPoint does not belong") || !bytes.Equal(rows[1]["kafka_raw"].([]byte), wrong.Value) {
		t.Errorf("other record: %v", rows[1])
	}
	if rows[2]["env"] != "catch" || rows[2]["kafka_error"] != nil {
		t.Errorf("good record: %v", rows[2])
	}
}

func TestTable_DeadLetters(t *testing.T) {
	for _, c := range []struct {
		key  string
		want map[string]string
	}{
		{"test.traces/2/41", map[string]string{"source_topic": "test.traces", "source_partition": "2", "source_offset": "41"}},
		{"", map[string]string{"source_topic": "", "source_partition": "<nil>", "source_offset": "<nil>"}},
		{"a/x/y", map[string]string{"source_topic": "a", "source_partition": "<nil>", "source_offset": "<nil>"}},
	} {
		dir := t.TempDir()
		write(t, dir, "dlq", Row{Key: []byte(c.key), Value: []byte{0, 0xFF}, Headers: []Header{
			{"prl-stage", []byte("scorer")}, {"prl-error", []byte("bad \xff")}, {"prl-key", []byte("12")}, {"own", []byte{9}}}})
		rows := read(t, dir, "dlq")
		maps.Copy(c.want, map[string]string{"stage": "scorer", "error": "bad \uFFFD", "key": "[49 50]", "value": "[0 255]"})
		for column, want := range c.want {
			if got := fmt.Sprint(rows[0][column]); got != want {
				t.Errorf("key %q: %s = %s, want %s", c.key, column, got, want)
			}
		}
		if got := fmt.Sprint(rows[0]["headers"]); !strings.Contains(got, "own") || strings.Contains(got, "prl-") {
			t.Errorf("headers = %s", got)
		}
	}
}

func BenchmarkWriteTraces(b *testing.B) {
	trace := &schemas.Trace{Env: "wordle", GroupSize: 8, Rewards: map[string]*float64{"green": new(0.5)}}
	ids, probs := make([]int32, 256), make([]float32, 256)
	for i := range ids {
		ids[i], probs[i] = int32(i*i%5000), -1/float32(i+1)
	}
	for i := range 12 {
		trace.Nodes = append(trace.Nodes, schemas.Node{Parent: i - 1, Role: "assistant", TokenIDs: schemas.PackInt32s(ids),
			Logprobs: schemas.PackFloat32s(probs), Mask: bytes.Repeat([]byte{1}, 256)})
	}
	var rows []Row
	for i := range int64(200) {
		rows = append(rows, row(b, i, trace))
	}
	table, _ := tableOf(pipeline.TopicTraces)
	b.SetBytes(rows[0].size() * int64(len(rows)))
	b.ReportAllocs()
	for b.Loop() {
		var out bytes.Buffer
		if _, err := table.write(&out, pipeline.TopicTraces, 0, rows, nil); err != nil {
			b.Fatal(err)
		}
	}
}
