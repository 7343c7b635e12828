package stages

import (
	"slices"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

// TestFlow holds the table to the topics: each has a writer and a reader, and what cores own they alone write.
func TestFlow(t *testing.T) {
	writers, readers := map[string][]string{}, map[string][]string{}
	for _, s := range Flow {
		if s.Name == "" || s.Does == "" || s.New == nil || s.Kind == "" || s.Key == "" {
			t.Errorf("stage %q: a row is not complete", s.Name)
		}
		for _, topic := range slices.Concat(s.Reads, s.Tables, s.Writes) {
			if _, ok := pipeline.TopicOf(topic); !ok {
				t.Errorf("%s names topic %s, which does not exist", s.Name, topic)
			}
		}
		for _, topic := range s.Writes {
			writers[topic] = append(writers[topic], s.Name)
		}
		if s.Kind != Special {
			writers[pipeline.TopicState] = append(writers[pipeline.TopicState], s.Name)
			writers[pipeline.TopicDLQ] = append(writers[pipeline.TopicDLQ], s.Name)
			if !slices.Contains(pipeline.StateStages, s.Name) {
				t.Errorf("%s has a processor and no partition of %s", s.Name, pipeline.TopicState)
			}
		}
		for _, topic := range slices.Concat(s.Reads, s.Tables) {
			if s.Name != "sink" && s.Name != "ui" { // these read everything
				readers[topic] = append(readers[topic], s.Name)
			}
		}
	}
	// These end the flow: people ask them.
	for _, topic := range []string{pipeline.TopicEvals, pipeline.TopicMetrics, pipeline.TopicDLQ} {
		readers[topic] = append(readers[topic], "sink")
	}
	for _, topic := range pipeline.Topics {
		name := topic.Name
		if name == "tasks." {
			name = AllTasks
		}
		if len(writers[name]) == 0 {
			t.Errorf("nothing writes %s", name)
		}
		if len(readers[name]) == 0 {
			t.Errorf("nothing reads %s", name)
		}
		sink, err := Find("sink")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(sink.Reads, name) {
			t.Errorf("the sink does not keep %s", name)
		}
	}
	for topic, who := range map[string]string{pipeline.TopicSamples: "scorer", pipeline.TopicBatches: "packer", pipeline.TopicPolicies: "trainer"} {
		if !slices.Equal(writers[topic], []string{who}) {
			t.Errorf("%s is written by %v, want %s alone", topic, writers[topic], who)
		}
	}
}
