package sink

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// What is read from the files is what was written to them: every record of a recorded run, and one with all fields.
func TestFilesGiveTheRecords(t *testing.T) {
	f32 := func(v ...float32) schemas.Float32s { return schemas.PackFloat32s(v) }
	full := &schemas.Trace{
		Env: "wordle", GroupSize: 2, RolloutIndex: 1, Task: `{"word":"crane","unknown":{"x":1}}`, PinVersion: new(int64(3)), Reward: new(0.5),
		Rewards: map[string]*float64{"green": new(0.5), "valid": nil}, Metrics: map[string]float64{"turns": 3},
		Errors: []schemas.TraceError{{Type: "crashed", Message: "m", Traceback: "t"}}, Timing: schemas.Timing{SetupMs: 1.5}, Truncated: true,
		Nodes: []schemas.Node{
			{Parent: -1, Role: "user", Content: "héllo"},
			{Parent: 0, Role: "assistant", TokenIDs: schemas.PackInt32s([]int32{5, -6}), Mask: []byte{0, 1}, Logprobs: f32(0, -1.5),
				TokenRewards: f32(1, 2), RefLogprobs: f32(-1, -2), RefModel: "teacher", Versions: []schemas.VersionRun{{Offset: 1, Version: 7}},
				ToolCalls: []schemas.ToolCall{{ID: "1", Name: "guess", Arguments: "{}"}}, Temperature: 0.5, Reward: new(-1.0), BodyTo: 2},
		},
		Blobs: []schemas.BlobRef{{Path: "nodes.0.mask", URI: "tensors/x", SHA256: "y"}},
	}
	topics := recorded(t)
	topics[pipeline.TopicEvalTraces] = append(topics[pipeline.TopicEvalTraces], row(t, 1<<30, full))
	for topic, rows := range topics {
		t.Run(topic, func(t *testing.T) {
			dir := t.TempDir()
			half := len(rows) / 2
			write(t, dir, topic, rows[:half]...)
			write(t, dir, topic, rows[half:]...)
			f, err := OpenFiles(dir, topic)
			if err != nil {
				t.Fatal(err)
			}
			if want := (pipeline.Span{End: rows[len(rows)-1].Offset + 1}); f.Spans[0] != want {
				t.Errorf("the files cover %v, want %v", f.Spans, want)
			}
			i := 0
			for s, err := range f.Read(t.Context(), 0) {
				if err != nil {
					t.Fatal(err)
				}
				v, err := schemas.Decode(rows[i].Value)
				if err != nil {
					t.Fatal(err)
				}
				want, err := schemas.Encode(v)
				if err != nil {
					t.Fatal(err)
				}
				if got, err := schemas.Encode(s.Value); err != nil || !bytes.Equal(got, want) || s.Offset != rows[i].Offset || !s.Time.Equal(rows[i].Time) {
					t.Fatalf("%+v became %+v at %d, %v (%v)", v, s.Value, s.Offset, s.Time, err)
				}
				i++
			}
			if i != len(rows) {
				t.Errorf("%d of %d records", i, len(rows))
			}
		})
	}
}

// recorded is the records of a run, by topic, as if each had one partition.
func recorded(t *testing.T) map[string][]Row {
	t.Helper()
	f, err := os.Open("../testdata/run-v1.jsonl.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	topics := map[string][]Row{}
	for lines := json.NewDecoder(z); ; {
		var r struct {
			Topic string
			Value []byte
		}
		if err := lines.Decode(&r); errors.Is(err, io.EOF) {
			return topics
		} else if err != nil {
			t.Fatal(err)
		}
		if spec, ok := pipeline.TopicOf(r.Topic); ok && spec.Record != "" {
			n := int64(len(topics[r.Topic]))
			topics[r.Topic] = append(topics[r.Topic], Row{Offset: 3*n + 1, Time: time.UnixMilli(1_700_000_000_123 + n), Value: r.Value})
		}
	}
}

func TestFilesKeepWhatCouldNotBeRead(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "requests", Row{Offset: 4, Value: []byte("garbage")})
	f, err := OpenFiles(dir, "requests")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for s, err := range f.Read(t.Context(), 0) {
		if n++; err != nil || s.Offset != 4 || s.Value != nil || s.Err == nil {
			t.Errorf("%+v, %v", s, err)
		}
	}
	if n != 1 {
		t.Errorf("%d records", n)
	}
}

// A chain with a hole, or of two topics, is refused, not read as if it were whole.
func TestFilesAreOneChain(t *testing.T) {
	dir := t.TempDir()
	request := &schemas.Request{Kind: schemas.RequestWave}
	write(t, dir, "requests", row(t, 0, request))
	write(t, dir, "requests", row(t, 1, request))
	write(t, dir, "requests", row(t, 2, request))
	paths, err := filepath.Glob(filepath.Join(dir, "requests", "requests-*"))
	if err != nil || len(paths) != 3 {
		t.Fatalf("%v, %v", paths, err)
	}
	other := strings.Replace(paths[1], "-ab", "-cd", 1)
	if err := os.Rename(paths[1], other); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFiles(dir, "requests"); err == nil || !strings.Contains(err.Error(), "begins at offset 2, the one before it ends at 1") {
		t.Errorf("a hole: %v", err)
	}
	if err := os.Rename(paths[2], strings.Replace(paths[2], "-ab", "-ef", 1)); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenFiles(dir, "requests"); err == nil || !strings.Contains(err.Error(), "two topics of the same name") {
		t.Errorf("two topics: %v", err)
	}
	if _, err := OpenFiles(dir, "dlq"); err == nil {
		t.Error("dead letters are no records")
	}
}
