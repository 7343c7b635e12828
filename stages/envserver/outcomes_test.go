package envserver

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// produceAt writes records with a time stamp to partition 0.
func produceAt(t *testing.T, rt *pipeline.Runtime, at time.Time, topic string, values ...schemas.Record) {
	t.Helper()
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	var recs []*kgo.Record
	for _, v := range values {
		r, err := rt.Encode(t.Context(), pipeline.Emission{Topic: topic, Partition: 0, Value: v})
		if err != nil {
			t.Fatal(err)
		}
		r.Timestamp = at
		recs = append(recs, r)
	}
	if err := cl.ProduceSync(t.Context(), recs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func outcomes(first, n int) []schemas.Record {
	var list []schemas.Record
	for i := range n {
		list = append(list, &schemas.GroupOutcome{Env: "game", GroupID: int64(first + i), Fate: schemas.FateFiltered})
	}
	return list
}

// A start reads the outcomes of what may still be open, not those of all the run.
func TestStartReadsOutcomesSinceTheOldestTask(t *testing.T) {
	rt, _, _ := testRun(t)
	now := time.Now()
	old, recent := now.Add(-24*time.Hour), now.Add(-time.Hour)
	produceAt(t, rt, old, pipeline.TopicTasks("game"), tasks(10, nil)...)
	stop := serve(t, rt, says(tokenizer(t), "hi"), nil)
	read(t, rt, pipeline.TopicTraces, covers(10))
	stop()
	for key, s := range states(t, rt) {
		if s.LowOffset != s.NextOffset {
			t.Fatalf("%s is unfinished", key)
		}
	}
	produceAt(t, rt, old, pipeline.TopicOutcomes, outcomes(0, 1000)...)
	s, err := New(rt, DefaultConfig(), map[string]env.Environment{"game": &game{}}, says(tokenizer(t), "hi"), nil)
	if err != nil {
		t.Fatal(err)
	}
	following := func() int64 {
		t.Helper()
		f, err := s.followOutcomes(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		produceAt(t, rt, time.Now(), pipeline.TopicOutcomes, outcomes(9999, 1)...)
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		recs, err := f.Poll(ctx)
		if err != nil || len(recs) == 0 {
			t.Fatalf("%d outcomes, %v", len(recs), err)
		}
		return recs[0].Offset
	}
	if from := following(); from < 1000 {
		t.Errorf("with nothing open, outcomes are read from offset %d", from)
	}
	produceAt(t, rt, recent, pipeline.TopicOutcomes, outcomes(1000, 10)...)
	produceAt(t, rt, recent, pipeline.TopicTasks("game"), tasks(1, nil)...)
	produceAt(t, rt, now, pipeline.TopicTasks("game"), tasks(1, nil)...)
	oldest, err := s.oldestTask(t.Context(), "game")
	if err != nil || oldest.UnixMilli() != recent.UnixMilli() {
		t.Errorf("the oldest task is of %v, %v, want %v", oldest, err, recent)
	}
}
