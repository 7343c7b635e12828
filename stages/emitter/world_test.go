package emitter

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

// world is all of a run but the emitter: it feeds one and looks at what comes out.
type world struct {
	t      testing.TB
	run    pipeline.RunConfig
	r      *pipelinetest.Runner
	now    time.Time
	steps  []pipelinetest.Step // everything that happened, for pipelinetest.Check
	record bool
	score  func(g *schemas.Task, index int) float64 // reward of a rollout; nil for outcomes without rollouts

	tasks  []*schemas.Task  // in the order of emission
	traces []*schemas.Trace // likewise
	groups map[int64]*schemas.Task
	open   []int64 // groups without an outcome, by id
}

func ratio(v float64) *float64 { return &v }

// testRun has one partition of tasks, so that output does not depend on what only the queues remember.
func testRun() pipeline.RunConfig {
	run := pipeline.DefaultRunConfig()
	run.BatchSize, run.TaskPartitions, run.SeqLen = 16, 1, 64
	run.MaxOffPolicySteps = 9 // the bound has a test of its own
	return run
}

func testEnvs() map[string]EnvConfig {
	a, b := DefaultEnvConfig(), DefaultEnvConfig()
	a.GroupSize, b.GroupSize = 4, 3
	return map[string]EnvConfig{"catch": a, "wordle": b}
}

func info(env string, tasks int64) *schemas.EnvInfo {
	return &schemas.EnvInfo{Env: env, Version: "v-" + env, TrainTasks: tasks, EvalTasks: 10}
}

func policy(version int64, final bool) *schemas.PolicyVersion {
	return &schemas.PolicyVersion{Version: version, Step: version, Final: final}
}

func newWorld(t testing.TB, run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig) *world {
	t.Helper()
	factory, err := New(run, cfg, envs)
	if err != nil {
		t.Fatal(err)
	}
	r := pipelinetest.NewRunner(t, func(state []byte) (pipeline.Core, error) { return factory(0, state) })
	return &world{t: t, run: run, r: r, now: time.UnixMilli(1_700_000_000_000), groups: map[int64]*schemas.Task{}}
}

// ready is a world in which the emitter has read all that it waits for.
func ready(t testing.TB, run pipeline.RunConfig, cfg Config, envs map[string]EnvConfig) *world {
	w := newWorld(t, run, cfg, envs)
	w.table(policy(0, false))
	w.table(info("catch", 10))
	w.table(info("wordle", 7))
	return w
}

func (w *world) core() *Core { return w.r.Core.(*Core) }

func (w *world) step(s pipelinetest.Step) []pipeline.Emission {
	w.t.Helper()
	if w.record {
		w.steps = append(w.steps, s)
	}
	emitted := w.r.Step(w.t, s)
	for _, e := range emitted {
		switch v := e.Value.(type) {
		case *schemas.Task:
			w.tasks = append(w.tasks, v)
			if w.groups[v.GroupID] == nil {
				w.groups[v.GroupID] = v
				w.open = append(w.open, v.GroupID)
			}
		case *schemas.Trace:
			w.traces = append(w.traces, v)
		}
	}
	return emitted
}

func (w *world) table(v schemas.Record) {
	w.t.Helper()
	topic := map[string]string{"PolicyVersion": pipeline.TopicPolicies, "EnvInfo": pipeline.TopicEnvs, "StageState": pipeline.TopicState}[v.SchemaName()]
	w.step(pipelinetest.Step{Table: &pipeline.Record{Ref: pipeline.Ref{Topic: topic}, Value: v}})
}

func (w *world) feed(topic string, offset int64, v schemas.Record) []pipeline.Emission {
	w.t.Helper()
	return w.step(pipelinetest.Step{Record: &pipeline.Record{Ref: pipeline.Ref{Topic: topic, Offset: offset}, Value: v}})
}

// tick moves the clock by d.
func (w *world) tick(d time.Duration) []pipeline.Emission {
	w.t.Helper()
	w.now = w.now.Add(d)
	return w.step(pipelinetest.Step{Tick: w.now})
}

// outcome decides a group; step 0 packs it nowhere.
func (w *world) outcome(id, step int64) []pipeline.Emission {
	w.t.Helper()
	o := &schemas.GroupOutcome{Env: w.groups[id].Env, GroupID: id, Fate: schemas.FateFiltered}
	if step > 0 {
		o.Fate, o.Step = schemas.FatePacked, &step
	}
	if w.score != nil {
		for i := range w.groups[id].GroupSize {
			reward := w.score(w.groups[id], i)
			o.Rollouts = append(o.Rollouts, schemas.RolloutFate{RolloutIndex: i, Fate: o.Fate, Reward: &reward, Tokens: 10 * (i + 1)})
		}
	}
	w.open = slices.DeleteFunc(w.open, func(open int64) bool { return open == id })
	return w.feed(pipeline.TopicOutcomes, w.offset(), o)
}

func (w *world) request(q *schemas.Request) []pipeline.Emission {
	w.t.Helper()
	return w.feed(pipeline.TopicRequests, w.offset(), q)
}

// offset is a new one with every call, in order.
func (w *world) offset() int64 {
	w.now = w.now.Add(time.Microsecond)
	return w.now.UnixMicro()
}

func (w *world) refill(id int64, index, attempt int) int {
	w.t.Helper()
	return len(w.request(&schemas.Request{Kind: schemas.RequestRefill, GroupID: id, RolloutIndex: index, Attempt: attempt}))
}

func (w *world) rolloutsOpen() int {
	n := 0
	for _, id := range w.open {
		n += w.groups[id].GroupSize
	}
	return n
}

// live plays n random events of an asynchronous run that packs and trains: ticks, outcomes, refills, new versions. The
// oldest open group never gets its outcome.
func (w *world) live(rng *rand.Rand, n int) {
	w.t.Helper()
	step, version, inStep := int64(1), int64(0), 0
	for range n {
		switch {
		case len(w.open) < 2 || rng.IntN(3) == 0:
			w.tick(time.Duration(100+rng.IntN(2000)) * time.Millisecond)
		case rng.IntN(8) == 0 && version < step-1:
			version++
			w.table(policy(version, false))
		case rng.IntN(8) == 0:
			id := w.open[rng.IntN(len(w.open))]
			w.refill(id, rng.IntN(w.groups[id].GroupSize), 1+rng.IntN(3))
		default:
			id := w.open[1+rng.IntN(len(w.open)-1)]
			if rng.IntN(4) == 0 {
				w.outcome(id, 0)
				continue
			}
			w.outcome(id, step)
			if inStep += w.groups[id].GroupSize; inStep >= w.run.BatchSize {
				step, inStep = step+1, 0
			}
		}
	}
}
