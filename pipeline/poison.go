package pipeline

import (
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"
)

// What of a refused record and of its error goes to dlq: together less than a topic takes.
const (
	maxPoisonBytes   = 8 << 20
	maxPoisonHeaders = 1 << 20
	maxPoisonError   = 4 << 10
	maxPoisonKey     = 64 << 10
)

// Refuse counts and logs that a stage cannot use a record, and makes the record for dlq: the bytes as they came, under the
// coordinates they came from, with stage and reason.
func (rt *Runtime) Refuse(stage string, rec Record, r *kgo.Record, reason error) *kgo.Record {
	rt.Log.Warn("record refused", "stage", stage, "record", rec.Ref.String(), "error", reason)
	return &kgo.Record{
		Topic: rt.TopicName(TopicDLQ), Key: []byte(fmt.Sprintf("%s/%d/%d", rec.Topic, rec.Partition, rec.Offset)),
		Value: r.Value[:min(len(r.Value), maxPoisonBytes)], // the whole is where the key says
		Headers: append([]kgo.RecordHeader{
			{Key: "prl-stage", Value: []byte(stage)},
			{Key: "prl-error", Value: []byte(reason.Error()[:min(len(reason.Error()), maxPoisonError)])},
			{Key: "prl-key", Value: r.Key[:min(len(r.Key), maxPoisonKey)]},
		}, fitting(r.Headers)...),
	}
}

// fitting is the headers of a refused record as far as they fit.
func fitting(headers []kgo.RecordHeader) []kgo.RecordHeader {
	size := 0
	for i, h := range headers {
		if size += len(h.Key) + len(h.Value) + 10; size > maxPoisonHeaders {
			return headers[:i]
		}
	}
	return headers
}

// refusedBy says what a record of dlq tells of its stage and the reason.
func refusedBy(r *kgo.Record) string {
	var stage, reason string
	for _, h := range r.Headers {
		switch h.Key {
		case "prl-stage":
			stage = string(h.Value)
		case "prl-error":
			reason = string(h.Value)
		}
	}
	return stage + ": " + reason
}
