package eval

import (
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/emitter"
)

const second = time.Second

// world is all of a run but the eval stage: it feeds one and looks at what comes out.
type world struct {
	t       testing.TB
	r       *pipelinetest.Runner
	now     time.Time
	offset  int64
	steps   []pipelinetest.Step // everything that happened, for pipelinetest.Check
	waiting []*schemas.Task     // emitted, not played
	tasks   []*schemas.Task
	timeout []*schemas.Trace // written by the core, not fed to it yet
	fates   []*schemas.GroupOutcome
	results []*schemas.EvalResult
}

// sections are a run with two environments and two evals; one partition of tasks, so that output does not depend on
// what only the queues remember.
func sections() (pipeline.RunConfig, emitter.Config, map[string]emitter.EnvConfig, map[string]Config) {
	run := pipeline.DefaultRunConfig()
	run.TaskPartitions, run.SeqLen = 1, 64
	a, b := DefaultConfig(), DefaultConfig()
	a.Env, a.Examples, a.K, a.Interval, a.Permits = "catch", 6, 2, 2, 5
	b.Env, b.Examples, b.Interval = "wordle", 3, 3
	return run, emitter.DefaultConfig(),
		map[string]emitter.EnvConfig{"catch": emitter.DefaultEnvConfig(), "wordle": emitter.DefaultEnvConfig()},
		map[string]Config{"balls": a, "words": b}
}

func newWorld(t testing.TB, change func(evals map[string]Config)) *world {
	t.Helper()
	run, em, envs, evals := sections()
	if change != nil {
		change(evals)
	}
	factory, err := New(run, em, envs, evals)
	if err != nil {
		t.Fatal(err)
	}
	r := pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) { return factory(0, state) })
	return &world{t: t, r: r, now: time.UnixMilli(1_700_000_000_000)}
}

// ready is a world in which both environments are announced: catch with 4 held-out tasks, wordle with 100.
func ready(t testing.TB, change func(evals map[string]Config)) *world {
	w := newWorld(t, change)
	w.table(&schemas.EnvInfo{Env: "catch", Version: "1", EvalTasks: 4, Baselines: map[string]float64{"random": 0.3}})
	w.table(&schemas.EnvInfo{Env: "wordle", Version: "1", EvalTasks: 100})
	return w
}

func (w *world) core() *Core { return w.r.Core.(*Core) }

func (w *world) step(s pipelinetest.Step) []pipeline.Emission {
	w.t.Helper()
	w.steps = append(w.steps, s)
	emitted := w.r.Step(w.t, s)
	for _, e := range emitted {
		switch v := e.Value.(type) {
		case *schemas.Task:
			w.tasks, w.waiting = append(w.tasks, v), append(w.waiting, v)
		case *schemas.Trace:
			if e.Topic != pipeline.TopicEvalTraces {
				w.t.Fatalf("trace for %s", e.Topic)
			}
			w.timeout = append(w.timeout, v)
		case *schemas.GroupOutcome:
			w.fates = append(w.fates, v)
		case *schemas.EvalResult:
			w.results = append(w.results, v)
		}
	}
	return emitted
}

func (w *world) table(v schemas.Record) {
	w.t.Helper()
	w.step(pipelinetest.Step{Table: &pipeline.Record{Value: v}})
}

func (w *world) policy(version int64, final bool) {
	w.t.Helper()
	w.table(&schemas.PolicyVersion{Version: version, Final: final})
}

func (w *world) tick(d time.Duration) []pipeline.Emission {
	w.t.Helper()
	w.now = w.now.Add(d)
	return w.step(pipelinetest.Step{Tick: w.now})
}

func (w *world) feed(v *schemas.Trace) []pipeline.Emission {
	w.t.Helper()
	w.offset++
	return w.step(pipelinetest.Step{Record: &pipeline.Record{Ref: pipeline.Ref{Topic: pipeline.TopicEvalTraces, Offset: w.offset}, Value: v}})
}

// play makes the trace of a task's rollout.
func play(task *schemas.Task, index int, reward float64) *schemas.Trace {
	return &schemas.Trace{
		Env: task.Env, EnvVersion: "1", Eval: task.Eval, GroupID: task.GroupID, GroupSize: task.GroupSize, RolloutIndex: index,
		Split: task.Split, TaskIndex: task.TaskIndex, GroupSeed: task.GroupSeed, PinVersion: task.PinVersion, PolicyStart: task.PinVersion, PolicyEnd: task.PinVersion,
		Reward: &reward, Rewards: map[string]*float64{"score": &reward, "never": nil}, Metrics: map[string]float64{"turns": reward + 1},
		Nodes: []schemas.Node{
			{Parent: -1, TokenIDs: schemas.PackInt32s(make([]int32, 3)), Mask: make([]byte, 3), Logprobs: schemas.PackFloat32s(make([]float32, 3))},
			{Parent: 0, TokenIDs: schemas.PackInt32s(make([]int32, 2)), Mask: make([]byte, 2), Logprobs: schemas.PackFloat32s(make([]float32, 2))},
			{Parent: 0, TokenIDs: schemas.PackInt32s(make([]int32, 5)), Mask: make([]byte, 5), Logprobs: schemas.PackFloat32s(make([]float32, 5))},
		},
	}
}

func failed(task *schemas.Task, index int, errorType string) *schemas.Trace {
	t := play(task, index, 0)
	t.Reward, t.Rewards, t.Metrics, t.PolicyStart, t.PolicyEnd = nil, nil, nil, nil, nil
	t.Errors = []schemas.TraceError{{Type: errorType, Message: "m"}}
	return t
}

// playAll plays whatever is emitted until nothing more is, all with the same reward.
func (w *world) playAll(reward float64) {
	w.t.Helper()
	for w.tick(second); len(w.waiting) > 0; w.tick(second) {
		for len(w.waiting) > 0 {
			task := w.waiting[0]
			w.waiting = w.waiting[1:]
			w.feed(play(task, task.RolloutIndex, reward))
		}
	}
}
