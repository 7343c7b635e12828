package stages

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
)

// replayEmitter lets the emitter of an ordered run emit it again: the same tasks, byte for byte. Every state it had
// recorded can be restored.
func replayEmitter(t *testing.T, cfg *Config, topics map[string][]oldRecord) {
	for name, env := range cfg.Envs {
		env.Curriculum = emitter.DefaultEnvConfig().Curriculum
		cfg.Envs[name] = env
	}
	factory, err := emitter.New(cfg.Run, cfg.Emitter, cfg.Envs)
	if err != nil {
		t.Fatal(err)
	}
	states := 0
	for _, r := range topics[pipeline.TopicState] {
		if s := r.decode(t).(*schemas.StageState); s.Stage == "emitter" && len(s.Core) > 0 {
			states++
			if _, err := factory(0, s.Core); err != nil {
				t.Fatalf("state/%d: %v", r.Offset, err)
			}
		}
	}
	e := pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) { return factory(0, state) })
	core := e.Core.(*emitter.Core)
	for _, r := range topics[pipeline.TopicEnvs] {
		e.Table(t, r.Topic, r.decode(t))
	}
	var outcomes []*schemas.GroupOutcome
	for _, r := range topics[pipeline.TopicOutcomes] {
		if o := r.decode(t).(*schemas.GroupOutcome); o.Eval == "" {
			outcomes = append(outcomes, o)
		}
	}
	now := time.UnixMilli(1_700_000_000_000)
	tick := func() {
		now = now.Add(time.Second)
		e.Tick(t, now)
	}
	for _, r := range topics[pipeline.TopicPolicies] {
		v := r.decode(t).(*schemas.PolicyVersion)
		v.Final = false // the end cancels nothing here
		e.Table(t, r.Topic, v)
		tick()
		for _, r := range topics[pipeline.TopicRequests] {
			if q := r.decode(t).(*schemas.Request); q.Step == v.Version+1 {
				e.Feed(t, r.Topic, q)
				tick()
			}
		}
		for core.Open() > 0 && len(outcomes) > 0 {
			e.Feed(t, pipeline.TopicOutcomes, outcomes[0])
			outcomes = outcomes[1:]
		}
	}
	name := func(k *schemas.Task) string { return fmt.Sprint(k.GroupID, "/", k.RolloutIndex, "/", k.Attempt) }
	made := map[string][]byte{}
	for _, e := range e.Emitted {
		k := e.Value.(*schemas.Task)
		made[name(k)] = encode(t, k)
	}
	were := 0
	for env := range cfg.Envs {
		for _, r := range topics[pipeline.TopicTasks(env)] {
			if k := r.decode(t).(*schemas.Task); k.Eval == "" {
				were++
				if !bytes.Equal(made[name(k)], encode(t, k)) {
					t.Errorf("task %s is emitted otherwise than it was: %+v", name(k), k)
				}
			}
		}
	}
	if were == 0 || were != len(made) || len(outcomes) > 0 || states == 0 {
		t.Errorf("%d tasks are emitted, %d were; %d outcomes were not needed; %d states", len(made), were, len(outcomes), states)
	}
}
