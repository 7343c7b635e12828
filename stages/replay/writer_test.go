package replay

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

var written = []string{pipeline.TopicSamples, pipeline.TopicBatches, pipeline.TopicOutcomes, pipeline.TopicMetrics}

// into makes the topics of a run that a replay of the fixture writes to.
func into(t *testing.T, brokers []string, name string) *pipeline.Runtime {
	t.Helper()
	_, run := fixture(t)
	run.Name = name
	rt := pipelinetest.Runtime(t, brokers, run)
	if err := rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	return rt
}

var errStop = errors.New("stopped by the test")

// replayInto recomputes the fixture into a run and stops in front of write number stop, if that comes.
func replayInto(t *testing.T, rt *pipeline.Runtime, cfg Config, stop int) (*Writer, error) {
	t.Helper()
	src, _ := fixture(t)
	w, err := OpenWriter(t.Context(), rt, written...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Close)
	n := 0
	cfg.Write = func(ctx context.Context, made []pipeline.Emission) error {
		if n++; n == stop {
			return errors.Join(errStop, w.flush(ctx))
		}
		return w.Write(ctx, made)
	}
	if _, err = Recompute(t.Context(), src, cfg); err == nil {
		err = w.End(t.Context())
	}
	return w, err
}

// contents are the records of a run's topics.
func contents(t *testing.T, rt *pipeline.Runtime) map[string][]string {
	t.Helper()
	spans, err := rt.Spans(t.Context(), true, written...)
	if err != nil {
		t.Fatal(err)
	}
	all := map[string][]string{}
	err = rt.ReadSpans(t.Context(), true, spans, func(r *kgo.Record) error {
		if !r.Attrs.IsControl() {
			all[rt.BaseName(r.Topic)] = append(all[rt.BaseName(r.Topic)], string(r.Value))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// What is recomputed with the recorded settings is written as it was recorded; a replay that was stopped goes on, and one
// that is done again writes nothing.
func TestInvariant_WrittenOnce(t *testing.T) {
	src, run := fixture(t)
	rt := into(t, broker(t), "b")
	first, err := replayInto(t, rt, same(run), 9)
	if !errors.Is(err, errStop) || first.Written == 0 {
		t.Fatalf("%d records before the stop: %v", first.Written, err)
	}
	second, err := replayInto(t, rt, same(run), 0)
	if err != nil || second.Found != first.Written || second.Written == 0 {
		t.Fatalf("%d records found, %d were written: %v", second.Found, first.Written, err)
	}
	third, err := replayInto(t, rt, same(run), 0)
	if err != nil || third.Written != 0 || third.Found != second.Found+second.Written {
		t.Fatalf("%d records written again, %d found: %v", third.Written, third.Found, err)
	}
	got := contents(t, rt)
	for _, topic := range []string{pipeline.TopicBatches, pipeline.TopicSamples} {
		var want []string
		for _, recs := range src[topic] {
			for _, r := range recs {
				v, err := r.Decode(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				b, err := schemas.Encode(v)
				if err != nil {
					t.Fatal(err)
				}
				want = append(want, string(b))
			}
		}
		if n := len(got[topic]); n != len(want) {
			t.Errorf("%s has %d records, %d were recorded", topic, n, len(want))
		}
		for i, b := range got[topic] {
			if topic == pipeline.TopicBatches && b != want[i] {
				t.Errorf("record %d of %s is another one", i, topic)
			}
		}
	}
}

// A run that holds something else is refused, and so is one that holds more.
func TestOtherRunsAreRefused(t *testing.T) {
	_, run := fixture(t)
	brokers := broker(t)
	rt := into(t, brokers, "b")
	if _, err := replayInto(t, rt, same(run), 0); err != nil {
		t.Fatal(err)
	}
	if _, err := replayInto(t, rt, other(run, run, monitored()), 0); err == nil || !strings.Contains(err.Error(), "is another one") {
		t.Errorf("other settings: %v", err)
	}
	cfg := same(run)
	cfg.Select.ToVersion = 2
	if _, err := replayInto(t, rt, cfg, 0); err == nil || !strings.Contains(err.Error(), "the others are of something else") {
		t.Errorf("a part: %v", err)
	}
}

// A writer that another one has followed writes nothing any more.
func TestInvariant_OneWriter(t *testing.T) {
	rt := into(t, broker(t), "b")
	first, err := OpenWriter(t.Context(), rt, written...)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	second, err := OpenWriter(t.Context(), rt, written...)
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	made := []pipeline.Emission{{Topic: pipeline.TopicMetrics, Partition: pipeline.AutoPartition, Value: &schemas.MetricPoint{Name: "x", Stage: "packer"}}}
	if err := first.Write(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	if err := first.End(t.Context()); err == nil {
		t.Error("the first writer was not fenced")
	}
	if err := second.Write(t.Context(), made); err != nil {
		t.Fatal(err)
	}
	if err := second.End(t.Context()); err != nil {
		t.Error(err)
	}
	if n := len(contents(t, rt)[pipeline.TopicMetrics]); n != 1 {
		t.Errorf("%d records", n)
	}
}
