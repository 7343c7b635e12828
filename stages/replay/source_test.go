package replay

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
)

// Deleted records are an error where they would be read, and only there.
func TestDeletedRecords(t *testing.T) {
	rt := into(t, broker(t), "b")
	cl, err := rt.Client()
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	topic := rt.TopicName(pipeline.TopicBatches)
	if err := cl.ProduceSync(t.Context(), &kgo.Record{Topic: topic, Value: []byte("old")}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	below := kadm.Offsets{}
	below.Add(kadm.Offset{Topic: topic, At: 1})
	if resp, err := kadm.NewClient(cl).DeleteRecords(t.Context(), below); err != nil || resp.Error() != nil {
		t.Fatal(err, resp.Error())
	}
	if _, err := FromTopics(t.Context(), rt, pipeline.TopicTraces, pipeline.TopicBatches); err == nil || !strings.Contains(err.Error(), "batches/0 starts at offset 1") {
		t.Errorf("batches that were deleted: %v", err)
	}
	src, err := FromTopics(t.Context(), rt, pipeline.TopicTraces, pipeline.TopicPolicies)
	if err != nil {
		t.Fatalf("nobody reads batches: %v", err)
	}
	if src.Spans(pipeline.TopicTraces) == nil || src.Spans(pipeline.TopicBatches) != nil {
		t.Errorf("spans of traces %v, of batches %v", src.Spans(pipeline.TopicTraces), src.Spans(pipeline.TopicBatches))
	}
}
