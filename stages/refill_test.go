package stages

import (
	"fmt"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
	"github.com/prl-project/prl/stages/scorer"
)

// TestRefill joins the emitter's and the scorer's cores: of a group of three one rollout fails until its last attempt, and
// just that is emitted again, with its seed; then the group is scored. Of an environment that scores groups the whole
// group is.
func TestRefill(t *testing.T) {
	for _, whole := range []bool{false, true} {
		cfg := DefaultConfig()
		cfg.Prepare(map[string]any{"envs": map[string]any{"e": map[string]any{}}})
		cfg.Run.TracePartitions, cfg.Run.BatchSize = 1, 3
		env := cfg.Envs["e"]
		env.GroupSize = 3
		cfg.Envs["e"] = env
		makeEmitter, err := emitter.New(cfg.Run, cfg.Emitter, cfg.Envs)
		if err != nil {
			t.Fatal(err)
		}
		makeScorer := scorer.New(cfg.Run, cfg.Scorer, cfg.Emitter.MaxAttempts)
		emit := pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) { return makeEmitter(0, state) })
		score := pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) { return makeScorer(0, state) })
		emit.Table(t, pipeline.TopicEnvs, &schemas.EnvInfo{Env: "e", Version: "1", TrainTasks: 100, GroupScoring: whole})
		emit.Table(t, pipeline.TopicPolicies, &schemas.PolicyVersion{})
		tasks := first(emit.Tick(t, time.UnixMilli(1_700_000_000_000)))
		var groups []*schemas.SampleGroup
		seeds := map[int]int64{}
		for played := 0; len(tasks) > 0; played++ {
			task := tasks[0]
			tasks = tasks[1:]
			if seed, again := seeds[task.RolloutIndex]; again != (task.Attempt > 0) || again && seed != task.Seed {
				t.Fatalf("rollout %d, attempt %d has seed %d, before %d", task.RolloutIndex, task.Attempt, task.Seed, seed)
			}
			seeds[task.RolloutIndex] = task.Seed
			for _, trace := range rollouts(task) {
				for _, e := range score.Feed(t, pipeline.TopicTraces, trace) {
					switch v := e.Value.(type) {
					case *schemas.Request:
						tasks = append(tasks, first(emit.Feed(t, e.Topic, v))...)
					case *schemas.SampleGroup:
						groups = append(groups, v)
					}
				}
			}
			if played > 9 {
				t.Fatal("there is no end to it")
			}
		}
		attempts := ""
		for _, r := range groups[0].Rollouts {
			attempts += fmt.Sprint(r.Attempt)
		}
		want := map[bool]string{false: "020", true: "222"}[whole]
		if len(groups) != 1 || groups[0].Reason != "" || len(groups[0].Samples) != 2 || attempts != want {
			t.Errorf("group scoring %v: %d groups, the first %+v, attempts %s, want %s", whole, len(groups), groups[0], attempts, want)
		}
	}
}

// first are the tasks of group 0.
func first(emitted []pipeline.Emission) (tasks []*schemas.Task) {
	for _, e := range emitted {
		if task, ok := e.Value.(*schemas.Task); ok && task.GroupID == 0 {
			tasks = append(tasks, task)
		}
	}
	return tasks
}

// rollouts are the traces of a task, of which rollout 1 fails before attempt 2, and with it all that are scored with it.
func rollouts(task *schemas.Task) (traces []*schemas.Trace) {
	for i := range task.GroupSize {
		if task.RolloutIndex >= 0 && task.RolloutIndex != i {
			continue
		}
		reward := float64(i)
		trace := &schemas.Trace{
			Env: task.Env, GroupID: task.GroupID, GroupSize: task.GroupSize, RolloutIndex: i, Attempt: task.Attempt, Seed: task.Seed, TaskIndex: task.TaskIndex,
			Reward: &reward,
			Nodes: []schemas.Node{
				{Parent: -1, Role: "user", TokenIDs: schemas.PackInt32s([]int32{1}), Mask: []byte{0}, Logprobs: make([]byte, 4)},
				{Role: "assistant", TokenIDs: schemas.PackInt32s([]int32{2}), Mask: []byte{1}, Logprobs: make([]byte, 4), Temperature: 1, Versions: []schemas.VersionRun{{}}},
			},
		}
		if task.RolloutIndex < 0 {
			trace.GroupRun = fmt.Sprint("run ", task.Attempt)
		}
		if task.Attempt < 2 && (i == 1 || task.RolloutIndex < 0) {
			trace.Reward, trace.Nodes = nil, nil
			trace.Errors = []schemas.TraceError{{Type: "model", Message: "no answer"}}
		}
		traces = append(traces, trace)
	}
	return traces
}
