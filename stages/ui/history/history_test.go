package history

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/ui/uitest"
)

var at = time.UnixMilli(1_700_000_000_123)

// written is a run of n steps, with some traces that are unlike the others.
func written(t *testing.T, steps int) string {
	dir := t.TempDir()
	for s := range steps {
		uitest.Write(t, dir, at, uitest.Step(int64(s+1))...)
	}
	odd := uitest.Trace(7, 1, 0)
	odd.Reward, odd.PolicyStart, odd.Attempt, odd.Truncated, odd.Nodes = nil, nil, 2, true, nil
	odd.Errors = []schemas.TraceError{{Type: "model", Message: "it's gone"}, {Type: "second", Message: "not shown"}}
	said := uitest.Trace(9, 0, 0)
	said.Nodes[1].ToolCalls = []schemas.ToolCall{{Name: "guess", Arguments: `{"word":"Ünique"}`}}
	said.Nodes[1].Reasoning = "hidden thought"
	uitest.Write(t, dir, at, uitest.Record{Topic: pipeline.TopicTraces, Value: odd}, uitest.Record{Topic: pipeline.TopicTraces, Value: said},
		uitest.Record{Topic: pipeline.TopicOutcomes, Value: &schemas.GroupOutcome{Env: "catch", GroupID: 99, Fate: schemas.FateTimedOut}})
	return dir
}

// TestColumns holds what is read by columns to the whole records.
func TestColumns(t *testing.T) {
	dir := written(t, 5)
	f := New(dir)
	traces, outcomes, points := 0, 0, 0
	each := func(topic string, read func(file sink.File, whole []sink.Stored)) {
		files, err := f.List(topic)
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", topic, len(files), err)
		}
		for _, file := range files {
			var whole []sink.Stored
			for s, err := range sink.ReadFile(t.Context(), file) {
				if err != nil {
					t.Fatal(err)
				}
				whole = append(whole, s)
			}
			read(file, whole)
		}
	}
	each(pipeline.TopicTraces, func(file sink.File, whole []sink.Stored) {
		got, err := Rollouts(file)
		if err != nil || len(got) != len(whole) {
			t.Fatalf("%d rollouts of %d, %v", len(got), len(whole), err)
		}
		for i, r := range got {
			w := whole[i].Value.(*schemas.Trace)
			traces++
			reason := ""
			if len(w.Errors) > 0 {
				reason = w.Errors[0].Type + ": " + w.Errors[0].Message
			}
			if r.ID.Offset != whole[i].Offset || r.ID.Partition != file.Partition || !r.Time.Equal(whole[i].Time) || r.Env != w.Env || r.Group != w.GroupID || r.Task != w.TaskIndex ||
				r.Rollout != w.RolloutIndex || r.Attempt != w.Attempt || !reflect.DeepEqual(r.Reward, w.Reward) || !reflect.DeepEqual(r.Start, w.PolicyStart) || !reflect.DeepEqual(r.End, w.PolicyEnd) ||
				r.Stop != w.StopReason || r.Truncated != w.Truncated || r.Error != reason || r.Seconds != 0.1 {
				t.Errorf("%+v\nof %+v", r, w)
			}
		}
	})
	each(pipeline.TopicOutcomes, func(file sink.File, whole []sink.Stored) {
		got, err := Outcomes(file, 0)
		if err != nil || len(got) != len(whole) {
			t.Fatalf("%d outcomes of %d, %v", len(got), len(whole), err)
		}
		for i, o := range got {
			outcomes++
			w := whole[i].Value.(*schemas.GroupOutcome)
			if len(w.Rollouts) == 0 {
				w.Rollouts = nil
			}
			if !reflect.DeepEqual(o, w) {
				t.Errorf("%+v\nof %+v", o, w)
			}
		}
		from := whole[len(whole)/2].Offset
		if later, err := Outcomes(file, from); err != nil || len(later) != len(whole)-len(whole)/2 {
			t.Errorf("%d outcomes of %d from the middle on, %v", len(later), len(whole), err)
		}
	})
	each(pipeline.TopicMetrics, func(file sink.File, whole []sink.Stored) {
		got, err := Metrics(file)
		if err != nil || len(got) != len(whole) {
			t.Fatalf("%d points of %d, %v", len(got), len(whole), err)
		}
		for i, p := range got {
			points++
			w := whole[i].Value.(*schemas.MetricPoint)
			if len(w.Labels) == 0 {
				w.Labels = nil
			}
			if !reflect.DeepEqual(p, w) {
				t.Errorf("%+v\nof %+v", p, w)
			}
		}
	})
	if traces != 5*5*4+2 || outcomes != 5*5+1 || points == 0 {
		t.Errorf("%d traces, %d outcomes, %d points", traces, outcomes, points)
	}
}

func TestRecord(t *testing.T) {
	f := New(written(t, 4))
	ends, err := f.Ends(pipeline.TopicTraces)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	for p, end := range ends[pipeline.TopicTraces] {
		for o := range end {
			s, err := f.Record(t.Context(), pipeline.TopicTraces, p, o)
			if err != nil || s.Offset != o || s.Value == nil {
				t.Fatalf("%d@%d: %+v, %v", p, o, s, err)
			}
			seen++
		}
		if _, err := f.Record(t.Context(), pipeline.TopicTraces, p, end); !errors.Is(err, ErrNotThere) {
			t.Errorf("behind the end: %v", err)
		}
	}
	if seen != 4*5*4+2 {
		t.Errorf("%d records", seen)
	}
	if _, err := New(t.TempDir()).Record(t.Context(), pipeline.TopicTraces, 0, 0); !errors.Is(err, ErrNotThere) {
		t.Errorf("without files: %v", err)
	}
}

func TestWhere(t *testing.T) {
	f := New(written(t, 6))
	for step := range int64(8) {
		list, err := f.Where(t.Context(), pipeline.TopicBatches, "step", step, 10)
		if err != nil {
			t.Fatal(err)
		}
		if want := step >= 1 && step <= 6; want != (len(list) == 1) || want && list[0].(*schemas.MicroBatch).Step != step {
			t.Errorf("step %d: %v", step, list)
		}
	}
	list, err := f.Where(t.Context(), pipeline.TopicSamples, "group_id", 12, 1)
	if err != nil || len(list) != 1 || list[0].(*schemas.SampleGroup).GroupID != 12 {
		t.Errorf("group 12: %v, %v", list, err)
	}
}

func TestTexts(t *testing.T) {
	f := New(written(t, 2))
	for text, want := range map[string]int{"answer 2 of group 3": 1, "Ünique": 1, "hidden": 1, "task4": 2 * 4, "nobody says this": 0, "What is word": 2*5*4 + 1} {
		files, err := f.List(pipeline.TopicTraces)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, file := range files {
			offsets, err := Texts(t.Context(), file, func(b []byte) bool { return bytes.Contains(b, []byte(text)) })
			if err != nil {
				t.Fatal(err)
			}
			n += len(offsets)
		}
		if text == "task4" { // and the two that were added
			want += 1
		}
		if n != want {
			t.Errorf("%q is in %d rollouts, want %d", text, n, want)
		}
	}
}

// TestDamaged: a file that is none is an error that names it.
func TestDamaged(t *testing.T) {
	dir := written(t, 1)
	f := New(dir)
	files, err := f.List(pipeline.TopicOutcomes)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(files[0].Path, 100); err != nil {
		t.Fatal(err)
	}
	if _, err := Outcomes(files[0], 0); err == nil || !bytes.Contains([]byte(err.Error()), []byte(filepath.Base(files[0].Path))) {
		t.Errorf("a file that was cut: %v", err)
	}
}

func TestDeadLetters(t *testing.T) {
	dir := t.TempDir()
	f := New(dir)
	if n, _, err := f.DeadLetters(math.MaxInt64); n != 0 || err != nil {
		t.Errorf("%d without files, %v", n, err)
	}
	c, err := sink.OpenChain(dir, pipeline.TopicDLQ, [16]byte{1}, 0)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		row := sink.Row{Offset: int64(i), Time: at, Key: []byte("traces/0/1"), Value: []byte("x"), Headers: []sink.Header{{Key: "prl-stage", Value: []byte("scorer")}, {Key: "prl-error", Value: fmt.Appendf(nil, "bad %d", i)}}}
		if err := c.Append(row, at); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Flush(); err != nil {
		t.Fatal(err)
	}
	if n, newest, err := f.DeadLetters(math.MaxInt64); n != 3 || newest != "scorer: bad 2" || err != nil {
		t.Errorf("%d, %q, %v", n, newest, err)
	}
}

// TestEnds gives the ends of all topics of tasks.
func TestEnds(t *testing.T) {
	dir := t.TempDir()
	uitest.Write(t, dir, at, uitest.Record{Topic: "tasks.catch", Value: &schemas.Task{Env: "catch"}}, uitest.Record{Topic: "tasks.wordle", Value: &schemas.Task{Env: "wordle"}}, uitest.Record{Topic: "tasks.wordle", Value: &schemas.Task{Env: "wordle"}})
	ends, err := New(dir).Ends(pipeline.TopicTasks("any"))
	if err != nil || ends["tasks.catch"][0] != 1 || ends["tasks.wordle"][0] != 2 {
		t.Errorf("%v, %v", ends, err)
	}
	if names := slices.Sorted(func(yield func(string) bool) {
		for k := range ends {
			if !yield(k) {
				return
			}
		}
	}); len(names) != 2 {
		t.Errorf("topics %v", names)
	}
}
