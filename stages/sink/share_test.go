package sink

import (
	"fmt"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

// Sinks that divide the work have every partition once, and the partitions of each topic evenly.
func TestShare_EveryPartitionOnce(t *testing.T) {
	for of := range int32(5) {
		for _, topic := range pipeline.Topics {
			for partition := range 3 * of {
				var owners []int32
				for at := range of {
					s, err := parseShare(fmt.Sprintf("%d/%d", at, of))
					if err != nil {
						t.Fatal(err)
					}
					if s.has(topic.Name, partition) {
						owners = append(owners, at)
						if !s.has(topic.Name, partition+of) || of > 1 && s.has(topic.Name, partition+1) {
							t.Errorf("%s is not evenly divided among %d", topic.Name, of)
						}
					}
				}
				if len(owners) != 1 {
					t.Errorf("of %d sinks %v write %s/%d", of, owners, topic.Name, partition)
				}
			}
		}
	}
	if s, err := parseShare(""); err != nil || !s.has(pipeline.TopicTraces, 7) {
		t.Errorf("without a share: %v %v", s, err)
	}
	for _, text := range []string{"1", "2/2", "-1/2", "0/0", "a/b", "0/2/3", " 0/2", "0/2 ", "/", "0/"} {
		cfg := config(t.TempDir())
		cfg.Share = text
		if err := cfg.Validate(); err == nil {
			t.Errorf("%q is taken for a share", text)
		}
	}
}

// Two sinks with a share each write every record once, and neither fetches what is the other's.
func TestShare_DividesTheWork(t *testing.T) {
	rt, dir := newRun(t), t.TempDir()
	cl := client(t, rt)
	const n = 12 // in each of the partitions of traces
	for g := range int64(n * rt.Run.TracePartitions) {
		rec, err := rt.Encode(t.Context(), pipeline.Emission{Topic: pipeline.TopicTraces, Partition: pipeline.AutoPartition, Value: &schemas.Trace{Env: "catch", GroupID: g, GroupSize: 1}})
		if err != nil {
			t.Fatal(err)
		}
		if err := cl.ProduceSync(t.Context(), rec).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	fetched := 0.0
	for at := range 2 {
		one := pipelinetest.Runtime(t, rt.Brokers, rt.Run)
		cfg := config(dir)
		cfg.Share = fmt.Sprintf("%d/2", at)
		if err := start(t, one, cfg)(); err != nil { // a stop writes all there is
			t.Fatal(err)
		}
		had := counted(t, one.Metrics.Records.WithLabelValues(stage, pipeline.TopicTraces))
		if had == 0 || had == float64(n*rt.Run.TracePartitions) {
			t.Errorf("sink %d of 2 fetched %v records", at, had)
		}
		fetched += had
	}
	files, err := OpenFiles(dir, pipeline.TopicTraces)
	if err != nil {
		t.Fatal(err)
	}
	for p := range int32(rt.Run.TracePartitions) {
		if span := files.Spans[p]; span.End != n {
			t.Errorf("the files of traces/%d go to %d, want %d", p, span.End, n)
		}
	}
	if want := float64(n * rt.Run.TracePartitions); fetched != want {
		t.Errorf("two sinks fetched %v records, want %v", fetched, want)
	}
}
