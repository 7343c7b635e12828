package flow

import (
	"bytes"
	"compress/flate"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

var stages = []Stage{
	{Name: "emitter", Reads: []string{"outcomes"}, Writes: []string{"tasks.<env>"}}, {Name: "envserver", Reads: []string{"tasks.<env>"}, Writes: []string{"traces"}},
	{Name: "scorer", Reads: []string{"traces"}, Writes: []string{"samples"}}, {Name: "trainer", Reads: []string{"batches"}, Writes: []string{"policies"}},
}

func record(topic string, partition int32, offset int64, v schemas.Record) pipeline.Record {
	return pipeline.Record{Ref: pipeline.Ref{Topic: topic, Partition: partition, Offset: offset}, Value: v}
}

// state says that a stage has read to next and not finished n records.
func state(t *testing.T, stage, topic string, partition int, next int64, n int) *schemas.StageState {
	t.Helper()
	var b bytes.Buffer
	s := &schemas.StageState{Stage: stage, Topic: topic, Partition: partition, Instance: "one", LowOffset: next, NextOffset: next, Concurrency: 8}
	if n > 0 {
		w, err := flate.NewWriter(&b, flate.BestSpeed)
		if err != nil {
			t.Fatal(err)
		}
		set := make([]byte, (n+7)/8)
		for i := range n {
			set[i/8] |= 1 << (i % 8)
		}
		if _, err := w.Write(set); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		s.LowOffset, s.Unfinished = next-int64(n), b.Bytes()
	}
	return s
}

// TestMeter counts records, not offsets: markers of transactions between them are nobody's lag.
func TestMeter(t *testing.T) {
	now := time.Unix(1000, 0)
	m := New(stages, now)
	m.Begin("traces", 0, 100)
	for i := range int64(20) {
		now = now.Add(500 * time.Millisecond)
		m.Record(record("traces", 0, 100+2*i, &schemas.Trace{Nodes: []schemas.Node{{Mask: schemas.Uint8s{0, 1, 1}}}, Timing: schemas.Timing{GenerationMs: 30, EnvironmentMs: 10}}), now)
		m.Record(record("tasks.catch", 0, i, &schemas.Task{}), now)
		m.Record(record("tasks.wordle", 3, i, &schemas.Task{}), now)
	}
	for _, ms := range []float64{math.Inf(1), math.NaN(), -1, math.MaxFloat64} { // what an environment server may say
		m.Record(record("eval_traces", 0, 0, &schemas.Trace{Timing: schemas.Timing{SetupMs: ms, ScoringMs: ms}}), now)
	}
	m.State(state(t, "scorer", "traces", 0, 110, 3), now)
	m.State(state(t, "envserver", "tasks.catch", 0, 20, 0), now)
	m.State(state(t, "envserver", "tasks.wordle", 3, 16, 12), now)
	m.Record(record("batches", 0, 0, &schemas.MicroBatch{}), now)
	m.Record(record("batches", 0, 1, &schemas.MicroBatch{}), now)
	m.Record(record("policies", 0, 0, &schemas.PolicyVersion{NextOffsets: []int64{1}}), now)
	v := m.View(now)
	scorer, servers, trainer := v.find("scorer"), v.find("envserver"), v.find("trainer")
	if scorer.Unread != 15 || scorer.Working != 3 {
		t.Errorf("scorer has %d unread, %d at work", scorer.Unread, scorer.Working)
	}
	if servers.Unread != 4 || servers.Working != 12 || servers.Places != 8 || servers.Instances != 1 || servers.Behind["tasks"] != 4 {
		t.Errorf("servers: %+v", servers)
	}
	if trainer.Unread != 1 {
		t.Errorf("the trainer has %d unread", trainer.Unread)
	}
	if r := v.Topics["tasks"].Rate; r < 3.5 || r > 4 {
		t.Errorf("%v tasks a second", r)
	}
	if v.Tokens < 3.5 || v.Tokens > 4 {
		t.Errorf("%v tokens a second", v.Tokens)
	}
	if math.Abs(v.Generation-0.75) > 1e-9 {
		t.Errorf("%v of the time for the model", v.Generation)
	}
	m.State(state(t, "scorer", "traces", 0, 130, 0), now)
	if r := m.View(now.Add(time.Second)).find("scorer").Rate; math.Abs(r-10.0/11) > 0.01 {
		t.Errorf("the scorer reads %v a second", r)
	}
	if r := m.View(now.Add(time.Hour)).Topics["tasks"].Rate; r != 0 {
		t.Errorf("%v tasks a second an hour later", r)
	}
}

// TestInvariant_Bounded: what was seen of a partition is bounded, and lag is still right.
func TestInvariant_Bounded(t *testing.T) {
	now := time.Unix(1000, 0)
	m := New(stages, now)
	for i := range int64(10 * maxOffsets) {
		m.Record(record("traces", 0, i, &schemas.Trace{}), now)
	}
	if n := len(m.log("traces", 0).offsets); n > 2*maxOffsets {
		t.Errorf("%d offsets", n)
	}
	m.State(state(t, "scorer", "traces", 0, 5, 0), now)
	if n := m.View(now).find("scorer").Unread; n != 10*maxOffsets-5 {
		t.Errorf("%d unread", n)
	}
}

func TestBottleneck(t *testing.T) {
	servers := func(unread, working, places int) StageView {
		return StageView{Stage: Stage{Name: "envserver"}, Unread: unread, Working: working, Places: places, Rate: 100}
	}
	for name, c := range map[string]struct {
		view  View
		facts Facts
		stage string
		why   string
	}{
		"nothing is known":        {View{}, Facts{TrainerWait: math.NaN()}, "", ""},
		"ended":                   {View{}, Facts{TrainerWait: 0, Ended: true}, "", ""},
		"a busy trainer":          {View{}, Facts{TrainerWait: 0.1, Packed: 9, Trained: 6}, "trainer", "2 packed steps"},
		"a scorer that is behind": {View{Stages: []StageView{{Stage: Stage{Name: "scorer"}, Unread: 5000, Rate: 50}}}, Facts{TrainerWait: 0.9}, "scorer", "5000 records wait"},
		"it reads fast enough":    {View{Stages: []StageView{{Stage: Stage{Name: "scorer"}, Unread: 5000, Rate: 5000}}}, Facts{TrainerWait: 0.1}, "trainer", "busy 90 %"},
		"no places":               {View{Stages: []StageView{servers(0, 30, 8)}, Generation: 0.9}, Facts{TrainerWait: 0.5}, "envserver", "22 tasks wait for one of the 8 places"},
		"a slow model":            {View{Stages: []StageView{servers(0, 5, 8)}, Generation: 0.9}, Facts{TrainerWait: 0.5}, "inference", "90 % of theirs waiting for the model"},
		"a slow environment":      {View{Stages: []StageView{servers(0, 5, 8)}, Generation: 0.2}, Facts{TrainerWait: 0.5}, "envserver", "80 % of theirs in the environment"},
		"no tasks":                {View{Stages: []StageView{servers(0, 0, 8)}, Generation: 0.2}, Facts{TrainerWait: 0.5}, "emitter", "no task is open"},
	} {
		if got := c.view.Bottleneck(c.facts); got.Stage != c.stage || !strings.Contains(got.Why, c.why) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}
