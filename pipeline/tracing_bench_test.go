package pipeline

import (
	"strings"
	"testing"

	"github.com/prl-project/prl/schemas"
)

// BenchmarkRecord takes a task and a trace through what the shell does with each record: made on one side, read on the other.
// Without a section [tracing] that costs what it would if there were none.
func BenchmarkRecord(b *testing.B) {
	rt := &Runtime{Run: DefaultRunConfig()}
	task := &schemas.Task{Env: "wordle", GroupID: 7, GroupSize: 8, RolloutIndex: 3, Split: schemas.SplitTrain, TaskIndex: 11, Temperature: 1, TopP: 1}
	trace := &schemas.Trace{Env: "wordle", GroupID: 7, GroupSize: 8, RolloutIndex: 3, Split: schemas.SplitTrain, Task: strings.Repeat("x", 100)}
	for name, e := range map[string]Emission{
		"task":  {TopicTasks("wordle"), 0, task},
		"trace": {TopicTraces, AutoPartition, trace},
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				r, err := rt.Encode(b.Context(), e)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := rt.Decode(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
