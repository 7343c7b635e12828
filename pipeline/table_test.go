package pipeline

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/schemas"
)

// A table of states holds those of environment servers, from a minute ago on; other tables are read from the start.
func TestTableOfStatesIsBounded(t *testing.T) {
	rt, _ := testRuntime(t)
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	write := func(at time.Time, topic string, v schemas.Record) {
		t.Helper()
		r, err := rt.Encode(t.Context(), Emission{topic, AutoPartition, v})
		if err != nil {
			t.Fatal(err)
		}
		r.Timestamp = at
		if err := cl.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	state := func(stage string, partition int) *schemas.StageState {
		return &schemas.StageState{Stage: stage, Topic: "tasks.toy", Partition: partition}
	}
	now := time.Now()
	old := now.Add(-time.Hour)
	for p := range 9 {
		write(old, TopicState, state("envserver", p))
	}
	load := func(want int) {
		t.Helper()
		table, err := newTable(t.Context(), rt, []string{TopicState, TopicEnvs})
		if err != nil {
			t.Fatal(err)
		}
		defer table.close()
		if len(table.records) != want {
			t.Errorf("%d records, want %d: %v", len(table.records), want, table.records)
		}
	}
	load(0) // and it does not wait for what it leaves out
	write(old, TopicEnvs, &schemas.EnvInfo{Env: "toy", TrainTasks: 1})
	write(now, TopicState, state("emitter", 0))
	write(now, TopicState, state("envserver", 3))
	load(2)
}
