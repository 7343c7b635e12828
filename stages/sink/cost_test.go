package sink

import (
	"reflect"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// What a byte of records becomes in the files. More says that an encoding is gone, or never was where a field is new.
func TestCostBytes(t *testing.T) {
	most := map[string]float64{
		pipeline.TopicTraces: 0.43, pipeline.TopicSamples: 0.25, pipeline.TopicBatches: 0.25, pipeline.TopicOutcomes: 0.40,
		pipeline.TopicTasks("wordle"): 0.24, pipeline.TopicMetrics: 0.21,
	}
	for _, of := range benchTopics {
		n := of.rows / 8
		rows, size := lifelikeRows(t, of.topic, n)
		table, _ := tableOf(of.topic)
		var file counter
		writeAll(t, &file, table, of.topic, rows)
		ratio := float64(file) / float64(size)
		t.Logf("%s: %d records, %.3f", of.topic, n, ratio)
		if ratio > most[of.topic] {
			t.Errorf("%s: a byte of records becomes %.3f of a file; it may be %.2f", of.topic, ratio, most[of.topic])
		}
	}
}

// What a row costs whose memory an earlier one has left: the entries of its maps, and nothing for its tokens.
func TestCostAllocations(t *testing.T) {
	l := newLifelike()
	for _, c := range []struct {
		topic string
		most  float64
	}{{pipeline.TopicTraces, 24}, {pipeline.TopicSamples, 2}, {pipeline.TopicOutcomes, 2}, {pipeline.TopicTasks("wordle"), 2}, {pipeline.TopicMetrics, 2}} {
		table, _ := tableOf(c.topic)
		record := l.record(c.topic, 0)
		table.decode = func([]byte) (schemas.Record, error) { return record, nil }
		row := reflect.New(table.row).Elem()
		filled := testing.AllocsPerRun(100, func() {
			if err := table.fill(row, c.topic, 0, Row{}); err != nil {
				t.Fatal(err)
			}
		})
		t.Logf("%s: %.0f", c.topic, filled)
		if filled > c.most {
			t.Errorf("%s: %.0f allocations fill a row; %.0f are enough", c.topic, filled, c.most)
		}
	}
}
