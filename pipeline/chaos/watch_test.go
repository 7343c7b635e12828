package chaos

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// testWatch is fed by hand.
func testWatch() *watch {
	rt := &pipeline.Runtime{Run: pipeline.DefaultRunConfig()}
	rt.Run.Name, rt.Run.TracePartitions = runName, 2
	return &watch{rt: rt, keep: func(*kgo.Record) {}, groups: map[string]uint8{}, version: -1, eval: map[int64]bool{},
		dlq: map[string]bool{}, actives: map[string]string{}, waiting: map[*passage]bool{}}
}

func (w *watch) feed(t *testing.T, topic, key string, value schemas.Record, headers ...kgo.RecordHeader) {
	t.Helper()
	r := &kgo.Record{Topic: w.rt.TopicName(topic), Key: []byte(key), Timestamp: time.Now(), Headers: headers}
	if value != nil {
		var err error
		if r.Value, err = schemas.Encode(value); err != nil {
			t.Fatal(err)
		}
	}
	w.take(r)
}

func policy(version int64, final bool) *schemas.PolicyVersion {
	return &schemas.PolicyVersion{Version: version, Step: version, Kind: "full", Final: final, Weights: schemas.BlobRef{URI: "weights/a", SHA256: "a"}}
}

func outcome(id int64) *schemas.GroupOutcome {
	return &schemas.GroupOutcome{Env: envName, GroupID: id, Fate: schemas.FatePacked}
}

// TestPassage: it takes work that was emitted after it began, of every partition of traces, and a version after that.
func TestPassage(t *testing.T) {
	w := testWatch()
	tasks := pipeline.TopicTasks(envName)
	p := w.pass()
	p.since = p.since.Add(time.Hour)
	w.feed(t, tasks, "0", nil) // emitted before, read after
	w.feed(t, tasks, "1", nil)
	p.since = p.since.Add(-time.Hour)
	passed := func() bool {
		select {
		case <-p.done:
			return true
		default:
			return false
		}
	}
	w.feed(t, pipeline.TopicOutcomes, "0", outcome(0))
	w.feed(t, pipeline.TopicOutcomes, "1", outcome(1))
	w.feed(t, pipeline.TopicPolicies, "policy", policy(1, false))
	if passed() {
		t.Error("work from before it began has passed")
	}
	w.feed(t, tasks, "2", nil)
	w.feed(t, tasks, "4", nil)
	w.feed(t, pipeline.TopicOutcomes, "2", outcome(2))
	w.feed(t, pipeline.TopicOutcomes, "4", outcome(4))
	w.feed(t, pipeline.TopicPolicies, "policy", policy(2, false))
	if passed() {
		t.Error("one partition of two has passed")
	}
	w.feed(t, tasks, "3", nil)
	w.feed(t, pipeline.TopicOutcomes, "3", outcome(3))
	if passed() {
		t.Error("passed without a version")
	}
	w.feed(t, pipeline.TopicPolicies, "policy", policy(3, false))
	if !passed() || p.took <= 0 {
		t.Errorf("not passed, took %v", p.took)
	}
}

// TestWatchSeesTheEnd: the final version, measured, and every group decided.
func TestWatchSeesTheEnd(t *testing.T) {
	w := testWatch()
	steps := []func(){
		func() { w.feed(t, pipeline.TopicTasks(envName), "7", nil) },
		func() { w.feed(t, pipeline.TopicPolicies, "policy", policy(4, true)) },
		func() {
			w.feed(t, pipeline.TopicEvals, envName, &schemas.EvalResult{Eval: envName, Env: envName, Version: 4, K: 1})
		},
		func() { // a record of the harness is no outcome
			w.feed(t, pipeline.TopicOutcomes, "7", outcome(7), kgo.RecordHeader{Key: injectedHeader})
		},
	}
	for i, step := range steps {
		step()
		if ok, state := w.ended(); ok {
			t.Errorf("ended after %d of what it takes: %s", i+1, state)
		}
	}
	w.feed(t, pipeline.TopicOutcomes, "7", outcome(7))
	if ok, state := w.ended(); !ok {
		t.Errorf("not ended: %s", state)
	}
}

func TestWedged(t *testing.T) {
	for line, want := range map[string]bool{
		"[GroupCoordinator] ERROR The coordinator is out of sync with the underlying log": true,
		"java.lang.RuntimeException: No in-memory snapshot for epoch 3":                   true,
		"[ReplicaFetcher] WARN Error in response for fetch request":                       false,
	} {
		if isWedged(line) != want {
			t.Errorf("%q: %v", line, !want)
		}
	}
}
