package envserver

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/stages/envserver/env"
)

// TestServerEndsWhenItMayNotWriteTraces takes the right to write traces away while a rollout is played.
func TestServerEndsWhenItMayNotWriteTraces(t *testing.T) {
	rt, cluster, _ := testRun(t)
	produce(t, rt, pipeline.TopicTasks("game"), tasks(1, nil)...)
	cluster.ControlKey(int16(kmsg.Produce), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		p := req.(*kmsg.ProduceRequest)
		resp := p.ResponseKind().(*kmsg.ProduceResponse)
		denied := false
		for _, topic := range p.Topics {
			answer := kmsg.NewProduceResponseTopic()
			answer.Topic, answer.TopicID = topic.Topic, topic.TopicID
			info := cluster.TopicInfo(rt.TopicName(pipeline.TopicTraces))
			code := kerr.NotLeaderForPartition.Code // another topic of the same request is written again
			if topic.Topic == rt.TopicName(pipeline.TopicTraces) || topic.Topic == "" && info != nil && info.TopicID == topic.TopicID {
				code, denied = kerr.TopicAuthorizationFailed.Code, true
			}
			for _, part := range topic.Partitions {
				ap := kmsg.NewProduceResponseTopicPartition()
				ap.Partition, ap.ErrorCode = part.Partition, code
				answer.Partitions = append(answer.Partitions, ap)
			}
			resp.Topics = append(resp.Topics, answer)
		}
		return resp, nil, denied
	})
	cfg := DefaultConfig()
	s, err := New(rt, cfg, map[string]env.Environment{"game": &game{}}, says(tokenizer(t), "hi"), nil)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- s.Run(t.Context()) }()
	select {
	case err := <-done:
		if want := "the right Write on topic test.traces"; !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	case <-time.After(deadline):
		t.Fatal("the server goes on")
	}
}
