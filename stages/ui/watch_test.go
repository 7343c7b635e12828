package ui

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/ui/uitest"
)

// watch begins to watch the run of a page's broker, and ends with the test.
func (p *page) watch() *Watch {
	p.t.Helper()
	rt := *p.rt
	rt.Blobs = nil
	found, err := rt.Find(p.t.Context())
	if err != nil {
		p.t.Fatal(err)
	}
	if !slices.Equal(found.Envs, uitest.Envs) || found.Run.TracePartitions != uitest.Partitions || found.Run.TaskPartitions != rt.Run.TaskPartitions || found.Run.Ranks != 1 {
		p.t.Fatalf("found %+v", found)
	}
	rt.Run = found.Run
	w := NewWatch(&rt, Options{Stages: drawn, Envs: found.Envs, OpenGroups: func(state []byte) (int, int, error) { return int(state[0]), 8, nil }})
	ctx, cancel := context.WithCancel(p.t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() { ended <- w.Run(ctx, func() { close(ready) }) }()
	p.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			p.t.Errorf("ended with %v", err)
		}
	})
	select {
	case <-ready:
	case <-time.After(testDeadline):
		p.t.Fatal("it never knew where the run stands")
	}
	return w
}

// sees waits until the sight is as it should be.
func (p *page) sees(w *Watch, there func(Sight) bool) {
	p.t.Helper()
	var s Sight
	for deadline := time.Now().Add(testDeadline); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if s = w.Sight(); there(s) {
			return
		}
	}
	p.t.Fatalf("stays %+v", s)
}

func (s Sight) stage(name string) (unread, working int) {
	for _, v := range s.Flow.Stages {
		if v.Name == name {
			return v.Unread, v.Working
		}
	}
	return -1, -1
}

// TestWatch begins in the middle of a run: what the stages have read lies far back among states of others, and yet it is known
// what they have not.
func TestWatch(t *testing.T) {
	p := newRun(t, true)
	state := func(stage, topic string, partition int, next int64) uitest.Record {
		return uitest.Record{Topic: pipeline.TopicState, Value: &schemas.StageState{Stage: stage, Topic: topic, Partition: partition, Instance: "one", LowOffset: next, NextOffset: next, Core: []byte{3}}}
	}
	p.write(uitest.Record{Topic: pipeline.TopicEnvs, Value: &schemas.EnvInfo{Env: "catch"}})
	for step := range int64(3) {
		p.write(uitest.Step(step + 1)...)
	}
	p.write(state("scorer", pipeline.TopicSamples, 0, 1), state("emitter", pipeline.TopicOutcomes, 0, 15), state("packer", pipeline.TopicSamples, 0, 11))
	for i := range int64(statesAt + 100) { // more than is read at first
		p.write(state("scorer", pipeline.TopicTraces, 0, min(i, 17)))
	}
	p.write(uitest.Record{Topic: pipeline.TopicEvals, Value: uitest.Eval("catch", 2)})
	w := p.watch()
	s := w.Sight()
	if s.Version == nil || *s.Version != 3 || s.Step != 3 || s.Final || !s.Following {
		t.Errorf("%+v", s)
	}
	if unread, _ := s.stage("packer"); unread != 15-11 {
		t.Errorf("the packer has %d unread", unread)
	}
	if unread, _ := s.stage("emitter"); unread != 0 {
		t.Errorf("the emitter has %d unread", unread)
	}
	if unread, _ := s.stage("trainer"); unread != 0 {
		t.Errorf("the trainer has %d unread", unread)
	}
	if len(s.Envs) != 2 || s.Envs[0].Reward == nil || !s.Envs[0].Announced || s.Envs[1].Announced || len(s.Envs[0].Curve) != 3 {
		t.Errorf("environments %+v", s.Envs)
	}
	if len(s.Evals) != 1 || s.Evals[0].Version != 2 || *s.Evals[0].Avg < 0.1 {
		t.Errorf("evals %+v", s.Evals)
	}
	if s.OffPolicy == nil || s.OffPolicy.Max != 1 || s.Open == nil || s.Open.Groups != 3 || s.Ends["packed"] != 12 || s.Ends["filtered:zero_advantage"] != 3 {
		t.Errorf("off-policy %+v, open %+v, ends %v", s.OffPolicy, s.Open, s.Ends)
	}
	// All of it was written in the last half minute: the rate is that of the time stamps, from the first second on.
	p.sees(w, func(s Sight) bool { return s.Flow.Topics[pipeline.TopicTraces].Rate >= 1 })

	p.write(uitest.Step(4)...)
	p.sees(w, func(s Sight) bool {
		unread, _ := s.stage("packer")
		return s.Step == 4 && unread == 20-11 && len(s.Envs[0].Curve) == 4
	})
	p.write(state("packer", pipeline.TopicSamples, 0, 20))
	p.sees(w, func(s Sight) bool { unread, _ := s.stage("packer"); return unread == 0 })
	dead := &kgo.Record{Topic: p.rt.TopicName(pipeline.TopicDLQ), Headers: []kgo.RecordHeader{{Key: "prl-stage", Value: []byte("scorer")}, {Key: "prl-error", Value: []byte("of no use")}}}
	if err := p.cl.ProduceSync(t.Context(), dead).FirstErr(); err != nil {
		t.Fatal(err)
	}
	p.sees(w, func(s Sight) bool {
		return s.DLQ == 1 && slices.ContainsFunc(s.Notices, func(n Notice) bool { return strings.Contains(n.Text, "scorer: of no use") })
	})
	p.write(uitest.Record{Topic: pipeline.TopicPolicies, Value: uitest.Version(5, true)})
	p.sees(w, func(s Sight) bool { return s.Final })
}

// TestWatchRefuses what is not there, and says what is.
func TestWatchRefuses(t *testing.T) {
	p := newRun(t, true)
	rt := *p.rt
	rt.Run.Name = "tset"
	if _, err := rt.Find(t.Context()); !errors.Is(err, pipeline.ErrNoRun) || !strings.Contains(err.Error(), "no run tset, they have test") {
		t.Errorf("a run that is not there: %v", err)
	}
	rt.Brokers = []string{"127.0.0.1:1"}
	if _, err := rt.Find(t.Context()); err == nil || !strings.Contains(err.Error(), "127.0.0.1:1 do not answer") {
		t.Errorf("brokers that are not there: %v", err)
	}
}
