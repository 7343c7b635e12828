package pipeline

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestProcessorFinishesOpenGroupsAfterRestarts(t *testing.T) {
	rt, _ := testRuntime(t)
	const groups = 60
	order := rand.New(rand.NewPCG(1, 2)).Perm(2 * groups)
	for round := range 4 {
		stop := start(t, rt, toyConfig())
		for _, i := range order[round*groups/2 : (round+1)*groups/2] {
			produce(t, rt, trace(int64(i/2), i%2))
		}
		committed(t, rt, TopicState, 1) // it has worked
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	stop := start(t, rt, toyConfig())
	recs := committed(t, rt, TopicSamples, groups)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	oncePerGroup(t, recs, groups)
}

func TestProcessorSharesPartitions(t *testing.T) {
	rt, cluster := testRuntime(t)
	stops := []func() error{start(t, rt, toyConfig())}
	const groups = 40
	for i := range groups {
		produce(t, rt, trace(int64(i), 0))
		if i == 20 {
			other := runtimeFor(t, cluster.ListenAddrs(), "two")
			stops = append(stops, start(t, other, toyConfig()))
		}
	}
	for i := range groups {
		produce(t, rt, trace(int64(i), 1))
	}
	recs := committed(t, rt, TopicSamples, groups)
	for _, stop := range stops {
		if err := stop(); err != nil {
			t.Fatal(err)
		}
	}
	oncePerGroup(t, recs, groups)
}

func TestInvariant_BadInputStopsNothing(t *testing.T) {
	rt, _ := testRuntime(t)
	cl, err := rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	bad := &kgo.Record{Topic: rt.TopicName(TopicTraces), Key: []byte("7"), Value: []byte("no record")}
	if err := cl.ProduceSync(t.Context(), bad).FirstErr(); err != nil {
		t.Fatal(err)
	}
	refused := trace(3, 0)
	refused.Env = "poison"
	produce(t, rt, refused, trace(0, 0), trace(0, 1))
	stop := start(t, rt, toyConfig())
	oncePerGroup(t, committed(t, rt, TopicSamples, 1), 1)
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	dlq, err := rt.Client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{rt.TopicName(TopicDLQ): {0: kgo.NewOffset().AtStart()}}))
	if err != nil {
		t.Fatal(err)
	}
	defer dlq.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	errors := map[string]string{}
	for len(errors) < 2 {
		fetches := dlq.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatalf("%d of 2 records in dlq: %v", len(errors), err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			for _, h := range r.Headers {
				if h.Key == "prl-error" {
					errors[string(r.Key)] = string(h.Value)
				}
			}
		})
	}
	if errors["traces/0/1"] != "poison" || errors["traces/0/0"] == "" {
		t.Fatalf("dlq holds %v", errors)
	}
}
