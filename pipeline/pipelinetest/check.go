// Package pipelinetest runs cores on slices of records, and holds every core to the contract of pipeline.Core.
package pipelinetest

import (
	"bytes"
	"fmt"
	"sort"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// New makes a core for a partition from the state an earlier one left (nil at first).
type New func(state []byte) (pipeline.Core, error)

// A Step is one thing that happens to a core: a record of an input, a record of a table, or a tick of the clock.
type Step struct {
	Record *pipeline.Record
	Table  *pipeline.Record
	Tick   time.Time
}

// Runner feeds a core and keeps what it emits and has not finished, as the shell does.
type Runner struct {
	New     New
	Core    pipeline.Core
	Emitted []pipeline.Emission
	// Poison holds the errors of records that the core refused.
	Poison []error
	tables []pipeline.Record
	open   map[pipeline.Ref]pipeline.Record
	next   map[string]int64
}

// NewRunner starts a core with empty state.
func NewRunner(t testing.TB, newCore New) *Runner {
	t.Helper()
	core, err := newCore(nil)
	if err != nil {
		t.Fatalf("new core: %v", err)
	}
	return &Runner{New: newCore, Core: core, open: map[pipeline.Ref]pipeline.Record{}, next: map[string]int64{}}
}

// Feed gives the core a record at the next offset of a topic's partition 0 and returns what it emitted.
func (r *Runner) Feed(t testing.TB, topic string, v schemas.Record) []pipeline.Emission {
	t.Helper()
	rec := pipeline.Record{Ref: pipeline.Ref{Topic: topic, Offset: r.next[topic]}, Value: v}
	if spec, ok := pipeline.TopicOf(topic); ok && spec.Key != nil {
		rec.Key = spec.Key(v)
	}
	r.next[topic]++
	return r.Step(t, Step{Record: &rec})
}

// Table gives the core a record of a table.
func (r *Runner) Table(t testing.TB, topic string, v schemas.Record) {
	t.Helper()
	r.Step(t, Step{Table: &pipeline.Record{Ref: pipeline.Ref{Topic: topic}, Value: v}})
}

// Tick moves the core's clock.
func (r *Runner) Tick(t testing.TB, now time.Time) []pipeline.Emission {
	t.Helper()
	return r.Step(t, Step{Tick: now})
}

// Step does one step and returns what the core emitted in it.
func (r *Runner) Step(t testing.TB, s Step) []pipeline.Emission {
	t.Helper()
	var out pipeline.Out
	switch {
	case s.Record != nil:
		r.open[s.Record.Ref] = *s.Record
		if err := r.Core.Process(*s.Record, &out); err != nil {
			r.Poison = append(r.Poison, err)
			out = pipeline.Out{Finished: []pipeline.Ref{s.Record.Ref}}
		}
	case s.Table != nil:
		r.tables = append(r.tables, *s.Table)
		if err := r.Core.(pipeline.TableReader).Table(*s.Table); err != nil {
			t.Fatalf("table record %v: %v", s.Table.Ref, err)
		}
	default:
		if err := r.Core.(pipeline.Ticker).Tick(s.Tick, &out); err != nil {
			t.Fatalf("tick: %v", err)
		}
	}
	for _, ref := range out.Finished {
		if _, ok := r.open[ref]; !ok {
			t.Fatalf("core finished %v, which is not open", ref)
		}
		delete(r.open, ref)
	}
	r.Emitted = append(r.Emitted, out.Emitted...)
	return out.Emitted
}

// Unfinished is the records the core still needs, in the order of topic and offset.
func (r *Runner) Unfinished() []pipeline.Record {
	var recs []pipeline.Record
	for _, rec := range r.open {
		recs = append(recs, rec)
	}
	sort.Slice(recs, func(i, j int) bool {
		if recs[i].Topic != recs[j].Topic {
			return recs[i].Topic < recs[j].Topic
		}
		return recs[i].Offset < recs[j].Offset
	})
	return recs
}

// Restart throws the core away and builds it again from its state and unfinished records, as after a SIGKILL.
func (r *Runner) Restart(t testing.TB) {
	t.Helper()
	state, err := r.Core.State()
	if err != nil {
		t.Fatalf("state: %v", err)
	}
	core, err := r.New(bytes.Clone(state))
	if err != nil {
		t.Fatalf("restore from %d bytes: %v", len(state), err)
	}
	for _, rec := range r.tables {
		if err := core.(pipeline.TableReader).Table(rec); err != nil {
			t.Fatalf("restore: table record %v: %v", rec.Ref, err)
		}
	}
	for _, rec := range r.Unfinished() {
		var out pipeline.Out
		if err := core.Process(rec, &out); err != nil {
			t.Fatalf("restore: feed %v again: %v", rec.Ref, err)
		}
		if len(out.Finished) > 0 {
			t.Fatalf("restore: feeding %v again finished %v, which it had not the first time", rec.Ref, out.Finished)
		}
	}
	again, err := core.State()
	if err != nil {
		t.Fatalf("state after restore: %v", err)
	}
	if !bytes.Equal(state, again) {
		t.Fatalf("state changed over a restart:\n%q\n%q", state, again)
	}
	r.Core = core
}

// Check holds a core to its contract: cut the steps anywhere, rebuild it from its state and unfinished records, and
// the whole output is the same, byte for byte.
func Check(t testing.TB, newCore New, steps []Step) {
	t.Helper()
	want := output(t, newCore, steps, -1)
	for cut := range steps {
		if got := output(t, newCore, steps, cut); got != want {
			t.Fatalf("output differs after a restart before step %d of %d:\n%s\nwithout it:\n%s", cut, len(steps), got, want)
		}
	}
}

func output(t testing.TB, newCore New, steps []Step, cut int) string {
	t.Helper()
	r := NewRunner(t, newCore)
	for i, s := range steps {
		if i == cut {
			r.Restart(t)
		}
		r.Step(t, s)
	}
	var b bytes.Buffer
	for _, e := range r.Emitted {
		enc, err := schemas.Encode(e.Value)
		if err != nil {
			t.Fatalf("emitted for %s: %v", e.Topic, err)
		}
		fmt.Fprintf(&b, "%s/%d %s %x\n", e.Topic, e.Partition, e.Value.SchemaName(), enc)
	}
	return b.String()
}
