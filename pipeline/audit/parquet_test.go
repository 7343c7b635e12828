package audit

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// sunk writes a log into Parquet files, as the sink does.
func sunk(t *testing.T, l *testLog) (dir string) {
	t.Helper()
	dir = t.TempDir()
	if err := sink.WriteSchemas(dir); err != nil {
		t.Fatal(err)
	}
	byPart := map[part][]*record{}
	for _, r := range l.records {
		byPart[part{r.Topic, r.Partition}] = append(byPart[part{r.Topic, r.Partition}], r)
	}
	for p, records := range byPart {
		c, err := sink.OpenChain(dir, p.topic, [16]byte{1}, p.partition)
		if err != nil {
			t.Fatal(err)
		}
		for i, r := range records {
			row := sink.Row{Offset: r.Offset, Time: time.UnixMilli(1), Key: []byte(r.Key), Value: r.Raw}
			if r.Value != nil {
				if row.Value, err = schemas.Encode(r.Value); err != nil {
					t.Fatal(err)
				}
			}
			for _, k := range slices.Sorted(maps.Keys(r.Headers)) {
				row.Headers = append(row.Headers, sink.Header{Key: k, Value: []byte(r.Headers[k])})
			}
			err := c.Append(row, time.Now())
			if err == nil && (i == len(records)/2 || i == len(records)-1) {
				_, err = c.Flush()
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	return dir
}

func TestValidParquet(t *testing.T) {
	l := newLog(t, false)
	r := l.audit(Config{Ended: true, Parquet: sunk(t, l)})
	if r.Total() != 0 {
		t.Errorf("%v", r)
	}
	for _, c := range r.Topics {
		if c.Rows != c.Records {
			t.Errorf("%s: %d rows of %d records", c.Topic, c.Rows, c.Records)
		}
	}
}

// The newest rows may be missing while a run goes on; a hole may not.
func TestParquetOfOpenRun(t *testing.T) {
	l := newLog(t, false)
	dir := sunk(t, l)
	_, sg := samplesOf(l, 6)
	l.put(pipeline.TopicSamples, 0, sg)
	if n := l.audit(Config{Parquet: dir}).Count[TrainedOnce]; n != 0 {
		t.Errorf("%d violations", n)
	}
	expect(t, l.audit(Config{Parquet: dir, Ended: true}), TrainedOnce, "samples/0@7 is not in Parquet")
}

// Every violation that is planted into the files of a valid log is found.
func TestPlantedParquet(t *testing.T) {
	tests := []struct {
		name      string
		plant     func(l *testLog) // into what the sink was given
		invariant Invariant
		text      string
	}{
		{"record left out", func(l *testLog) {
			r, _ := traceRecord(l, 2, 0)
			l.drop(r)
		}, TrainedOnce, "traces/0@0 is not in Parquet"},
		{"record that does not exist", func(l *testLog) {
			_, sg := samplesOf(l, 2)
			l.put(pipeline.TopicSamples, 0, sg)
		}, TrainedOnce, "Parquet has a row of samples/0@7, which does not exist"},
		{"reward", func(l *testLog) {
			_, trace := traceRecord(l, 2, 0)
			trace.Reward = new(3.0)
		}, TrainedOnce, "the row of traces/0@0 has other values than the record"},
		{"a component of the reward", func(l *testLog) {
			_, trace := traceRecord(l, 2, 0)
			trace.Rewards["none"] = new(0.0)
		}, TrainedOnce, "the row of traces/0@0 has other values than the record"},
		{"image", func(l *testLog) {
			_, trace := traceRecord(l, 2, 0)
			trace.Nodes[0].Images[0].Data[1]++
		}, TrainedOnce, "the row of traces/0@0 has other values than the record"},
		{"token", func(l *testLog) {
			_, trace := traceRecord(l, 2, 0)
			trace.Nodes[1].TokenIDs[0]++
		}, TrainedOnce, "the row of traces/0@0 has other values than the record"},
		{"log-probability", func(l *testLog) {
			_, b := batchOf(l, 1, 0)
			b.Logprobs[len(b.Logprobs)-3] ^= 1
		}, TrainedOnce, "the row of batches/0@0 has other values than the record"},
		{"bytes of a dead letter", func(l *testLog) {
			l.last(pipeline.TopicDLQ, 0).Raw = []byte("other")
		}, TrainedOnce, "the row of dlq/0@0 has other values than the record"},
		{"bytes of an unreadable record", func(l *testLog) {
			for _, r := range l.records {
				if r.Err != nil {
					r.Raw = []byte("other")
				}
			}
		}, TrainedOnce, "has other values than the record"},
		{"task of a trace", func(l *testLog) {
			_, trace := traceRecord(l, 2, 0)
			trace.Task = strings.Replace(trace.Task, `"unknown"`, `"known"`, 1)
		}, NoEnvironment, "the task of traces/0@0 is another one in Parquet"},
		{"task", func(l *testLog) {
			_, task := taskOf(l, 2, 0)
			task.Task = "{}"
		}, NoEnvironment, "is another one in Parquet: {}"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := newLog(t, false)
			tt.plant(l)
			expect(t, newLog(t, false).audit(Config{Ended: true, Parquet: sunk(t, l)}), tt.invariant, tt.text)
		})
	}
	t.Run("file twice", func(t *testing.T) {
		l := newLog(t, false)
		dir := sunk(t, l)
		path := oneFile(t, dir, "outcomes")
		data, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(strings.TrimSuffix(path, ".parquet")+"-copy.parquet", data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
		expect(t, l.audit(Config{Ended: true, Parquet: dir}), TrainedOnce, "Parquet has two rows of outcomes/0@0")
	})
	t.Run("file damaged", func(t *testing.T) {
		l := newLog(t, false)
		dir := sunk(t, l)
		if err := os.Truncate(oneFile(t, dir, "outcomes"), 100); err != nil {
			t.Fatal(err)
		}
		expect(t, l.audit(Config{Ended: true, Parquet: dir}), TrainedOnce, ".parquet cannot be read")
	})
}

func oneFile(t *testing.T, dir, topic string) string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(dir, topic, topic+"-*.parquet"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no files of %s: %v", topic, err)
	}
	return paths[0]
}

// An image that a row has left in the blob store counts by its SHA-256.
func TestRowSumOfImagesInTheBlobStore(t *testing.T) {
	data := schemas.Blob{1, 2, 0xff}
	trace := &schemas.Trace{Env: "e", Nodes: []schemas.Node{{Parent: -1, Images: []schemas.Image{{Mime: "image/png", Data: data, SHA256: strings.Repeat("ab", 32)}}}}}
	sum := sha256.Sum256(data)
	row := map[string]any{"env": "e", "nodes": []any{map[string]any{"parent": int32(-1), "images": []any{
		map[string]any{"mime": "image/png", "data": "", "sha256": strings.Repeat("ab", 32)},
	}}}, "blobs": []any{map[string]any{"path": "nodes.0.images.0.data", "sha256": hex.EncodeToString(sum[:])}}}
	got, err := rowSum(reflect.TypeFor[schemas.Trace](), row)
	if err != nil || got != recordSum(trace) {
		t.Errorf("another sum: %v", err)
	}
	row["blobs"] = []any{}
	if got, err := rowSum(reflect.TypeFor[schemas.Trace](), row); err != nil || got == recordSum(trace) {
		t.Errorf("an image that is nowhere has the same sum: %v", err)
	}
}

// A tensor that a row has left in the blob store counts by its SHA-256.
func TestRowSumOfBlobs(t *testing.T) {
	ids := schemas.PackInt32s([]int32{1, 2})
	sg := &schemas.SampleGroup{Env: "e", Samples: []schemas.Sample{{
		TokenIDs: ids, Mask: []byte{0, 1}, Logprobs: schemas.PackFloat32s([]float32{0, -1}),
		Advantages: schemas.PackFloat32s([]float32{0, 1}), Temperatures: schemas.PackFloat32s([]float32{1, 1}),
	}}}
	l := newLog(t, false)
	r := l.put(pipeline.TopicSamples, 0, sg)
	ref := l.blob(string(ids))
	ref.Path = "samples.0.token_ids"
	moved := *sg
	moved.Samples = slices.Clone(sg.Samples)
	moved.Samples[0].TokenIDs, moved.Blobs = nil, []schemas.BlobRef{ref}
	for want, sha := range map[int64]string{0: ref.SHA256, 1: strings.Repeat("0", 64)} {
		moved.Blobs[0].SHA256 = sha
		r.Value = &moved
		dir := sunk(t, &testLog{t: t, records: []*record{r}})
		a := newAuditor(Config{Runtime: &pipeline.Runtime{Run: l.run}, Parquet: dir})
		a.keepRow(record{Record: pipeline.Record{Ref: r.Ref, Value: sg}})
		if err := a.readParquet(t.Context(), dir); err != nil {
			t.Fatal(err)
		}
		if got := a.report.Total(); got != want {
			t.Errorf("SHA-256 %s: %d violations, want %d: %v", sha, got, want, a.report.Violations)
		}
	}
}
