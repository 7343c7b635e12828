package envserver

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
)

// One environment that cannot begin its first task is said to fail and asked again; the others are announced, and played.
func TestOneEnvironmentFails(t *testing.T) {
	rt, _, _ := testRun(t)
	var broken atomic.Bool
	broken.Store(true)
	sick := &game{start: func() error {
		if broken.Load() {
			return errors.New("no licence")
		}
		return nil
	}}
	well := &game{}
	well.info.Name = "contest"
	rt.OpenFaults()
	s, err := newServer(rt, DefaultConfig(), map[string]env.Environment{"game": sick, "contest": well}, says(tokenizer(t), "hi"), nil, usual)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	produce(t, rt, pipeline.TopicTasks("contest"), tasks(3, func(_ int, t *schemas.Task) { t.Env = "contest" })...)
	read(t, rt, pipeline.TopicTraces, covers(3))
	infos := read(t, rt, pipeline.TopicEnvs, count(1))
	if infos[0].Key != "contest" || len(infos) != 1 {
		t.Fatalf("%d environments are announced, the first is %s", len(infos), infos[0].Key)
	}
	failed := false
	for _, r := range rt.Faults.Active() {
		failed = failed || r.Fault.Name == "EnvFails" && r.About == "game"
	}
	if !failed {
		t.Errorf("the faults are %+v", rt.Faults.Active())
	}
	broken.Store(false)
	if again := read(t, rt, pipeline.TopicEnvs, count(2)); again[1].Key != "game" {
		t.Errorf("%s is announced then", again[1].Key)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
