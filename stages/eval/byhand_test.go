package eval

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest"
	"github.com/prl-project/prl/schemas"
)

// testRun is a run on brokers of its own, with four versions and a scripted environment server.
type testRun struct {
	t  *testing.T
	rt *pipeline.Runtime
	cl *kgo.Client

	mu     sync.Mutex
	play   func(*schemas.Task) *schemas.Trace // nil for a rollout that never ends
	played int
}

func newTestRun(t *testing.T) *testRun {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	run, _, _, _ := sections()
	r := &testRun{t: t, rt: pipelinetest.Runtime(t, cluster.ListenAddrs(), run), play: scripted}
	if err := r.rt.SetUp(t.Context(), []string{"catch", "wordle"}); err != nil {
		t.Fatal(err)
	}
	if r.cl, err = r.rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.cl.Close)
	for v := range int64(4) {
		ref, err := r.rt.Blobs.Put(t.Context(), "weights", fmt.Append(nil, "version ", v))
		if err != nil {
			t.Fatal(err)
		}
		if v == 1 {
			ref.URI = "weights/gone"
		}
		r.put(pipeline.TopicPolicies, &schemas.PolicyVersion{Version: v, Step: v, Kind: "full", Weights: ref, Final: v == 3})
	}
	r.put(pipeline.TopicEnvs, &schemas.EnvInfo{Env: "catch", Version: "1", EvalTasks: 4})
	r.put(pipeline.TopicEvals, &schemas.EvalResult{Eval: "balls", Env: "catch", K: 2, Version: 3})
	r.serve()
	return r
}

func (r *testRun) put(topic string, v schemas.Record) {
	rec, err := r.rt.Encode(r.t.Context(), pipeline.Emission{Topic: topic, Partition: pipeline.AutoPartition, Value: v})
	if err == nil {
		err = r.cl.ProduceSync(r.t.Context(), rec).FirstErr()
	}
	if err != nil && r.t.Context().Err() == nil {
		r.t.Error(err)
	}
}

// serve plays the tasks that come.
func (r *testRun) serve() {
	f, err := r.rt.Follow(pipeline.TopicTasks("catch"))
	if err != nil {
		r.t.Fatal(err)
	}
	ctx, stop := context.WithCancel(r.t.Context())
	var work sync.WaitGroup
	work.Go(func() {
		for ctx.Err() == nil {
			recs, err := f.Poll(ctx)
			if err != nil {
				r.t.Error(err)
				return
			}
			for _, rec := range recs {
				r.mu.Lock()
				trace := r.play(rec.Value.(*schemas.Task))
				r.played++
				r.mu.Unlock()
				if trace != nil {
					r.put(pipeline.TopicEvalTraces, trace)
				}
			}
		}
	})
	r.t.Cleanup(func() {
		stop()
		work.Wait()
		f.Close()
	})
}

func (r *testRun) plays(with func(*schemas.Task) *schemas.Trace) (played int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	played, r.played = r.played, 0
	if with != nil {
		r.play = with
	}
	return played
}

func (r *testRun) wish(change func(*Wish)) Wish {
	_, _, _, evals := sections()
	w := Wish{Suite: "balls", Config: evals["balls"], Policy: Latest, Frozen: []string{"teacher"}}
	if change != nil {
		change(&w)
	}
	return w
}

func (r *testRun) open(change func(*Wish)) (*ByHand, error) {
	r.t.Helper()
	_, em, envs, _ := sections()
	return OpenByHand(r.t.Context(), r.rt, em, envs, r.wish(change))
}

// run runs an eval to its result, or until enough says to leave it.
func (r *testRun) run(change func(*Wish), enough func(Progress) bool) (*ByHand, *schemas.EvalResult) {
	r.t.Helper()
	b, err := r.open(change)
	if err != nil {
		r.t.Fatal(err)
	}
	defer b.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
	defer cancel()
	res, err := b.Run(ctx, func() {
		if enough != nil && enough(b.Progress()) {
			cancel()
		}
	})
	if err != nil {
		r.t.Fatal(err)
	}
	if res == nil && enough == nil {
		r.t.Fatal("no result within a minute")
	}
	return b, res
}

// records are those of a topic that evals by hand wrote.
func records[T schemas.Record](r *testRun, topic string) (all []T) {
	r.t.Helper()
	if err := visit(r.t.Context(), r.rt, []string{topic}, func(rec pipeline.Record) { all = append(all, rec.Value.(T)) }); err != nil {
		r.t.Fatal(err)
	}
	return all
}

// TestByHand measures the newest version of a run, an older one and a frozen policy; all is there for SQL.
func TestByHand(t *testing.T) {
	r := newTestRun(t)
	for policy, want := range map[string]Plan{Latest: {Version: 3}, "2": {Version: 2}, "teacher": {Policy: "teacher"}} {
		if want.Policy != "" {
			r.plays(func(task *schemas.Task) *schemas.Trace {
				trace := scripted(task)
				trace.PolicyStart, trace.PolicyEnd = nil, nil
				return trace
			})
		} else {
			r.plays(scripted)
		}
		b, res := r.run(func(w *Wish) { w.Policy = policy }, nil)
		if b.Plan.Version != want.Version || b.Plan.Policy != want.Policy || res.Version != want.Version || res.Policy != want.Policy ||
			res.Episodes != 12 || res.Eval != b.Plan.Name || res.AvgStderr == 0 {
			t.Errorf("%s: plan %+v, result %+v", policy, b.Plan, res)
		}
	}
	if results, outcomes := records[*schemas.EvalResult](r, pipeline.TopicEvals), records[*schemas.GroupOutcome](r, pipeline.TopicOutcomes); len(results) != 3 || len(outcomes) != 18 {
		t.Errorf("%d results, %d outcomes", len(results), len(outcomes))
	}
}

// TestByHandResumes leaves an eval in the middle; what it finds in the topics is not played again.
func TestByHandResumes(t *testing.T) {
	r := newTestRun(t)
	_, want := r.run(nil, nil)
	r.plays(func(task *schemas.Task) *schemas.Trace {
		if task.GroupID == 1 && task.RolloutIndex == 0 {
			return failed(task, 0, "model")
		}
		return scripted(task)
	})
	left, res := r.run(nil, func(p Progress) bool { return p.Done >= 3 })
	if res != nil {
		t.Fatal("it was not left in the middle")
	}
	before := len(records[*schemas.Task](r, pipeline.TopicTasks("catch"))) - 12
	r.plays(scripted)
	b, got := r.run(func(w *Wish) { w.Resume = Last }, nil)
	if !reflect.DeepEqual(b.Plan, left.Plan) {
		t.Errorf("resumed %+v, left %+v", b.Plan, left.Plan)
	}
	emitted := len(records[*schemas.Task](r, pipeline.TopicTasks("catch"))) - 12 - before
	if emitted != 12-before+1 {
		t.Errorf("%d tasks after %d of 12, one of which failed", emitted, before)
	}
	if got.AvgAtK != want.AvgAtK || got.PassAtK != want.PassAtK || got.Episodes != 12 || got.Errored != 0 {
		t.Errorf("result %+v, want %+v", got, want)
	}
	r.plays(nil)
	again, res := r.run(func(w *Wish) { w.Resume = b.ID() }, nil)
	if !again.Finished() || res.AvgAtK != want.AvgAtK || r.plays(nil) != 0 {
		t.Errorf("a finished eval was played again: %+v", res)
	}
	if _, err := r.open(func(w *Wish) { w.Resume = Last }); err == nil || !strings.Contains(err.Error(), "no eval by hand of catch with these settings") || !strings.Contains(err.Error(), b.ID()) {
		t.Errorf("error %v", err)
	}
}

// TestByHandBegins: there is something to resume once something was asked for.
func TestByHandBegins(t *testing.T) {
	r := newTestRun(t)
	begun := func(change func(*Wish), enough func(Progress) bool) *ByHand {
		b, _ := r.run(change, enough)
		return b
	}
	b := begun(func(w *Wish) { w.Here = true }, func(p Progress) bool { return p.Waiting != "" }) // for Announce
	if b.Begun() {
		t.Error("nothing was asked for, but it has begun")
	}
	if b = begun(nil, func(p Progress) bool { return p.InFlight > 0 }); !b.Begun() {
		t.Error("it has not begun, but rollouts are in flight")
	}
	again, err := r.open(func(w *Wish) { w.Resume = b.ID() })
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	if !again.Begun() {
		t.Error("it has not begun, but was resumed")
	}
}

// TestByHandServesItself believes its own server about the environment, not what the run's announced.
func TestByHandServesItself(t *testing.T) {
	r := newTestRun(t)
	b, err := r.open(func(w *Wish) { w.Here = true })
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	b.Announce(&schemas.EnvInfo{Env: "catch", Version: "2", EvalTasks: 2, Baselines: map[string]float64{"random": 0.5}})
	res, err := b.Run(t.Context(), func() {})
	if err != nil || res.Baselines["random"] != 0.5 {
		t.Fatalf("result %+v, error %v", res, err)
	}
	for _, task := range records[*schemas.Task](r, pipeline.TopicTasks("catch")) {
		if !b.Plays(task) || task.TaskIndex != task.GroupID%2 {
			t.Errorf("task %+v", task)
		}
	}
}

// TestPastIsSmall keeps no texts and tensors of what was played, but how many tokens there were.
func TestPastIsSmall(t *testing.T) {
	r := newTestRun(t)
	b, _ := r.run(nil, nil)
	p, err := (&begun{name: b.Plan.Name}).read(t.Context(), r.rt, "catch")
	if err != nil || len(p.traces) != 12 {
		t.Fatalf("%d traces, error %v", len(p.traces), err)
	}
	for _, trace := range p.traces {
		if trace.Nodes != nil || trace.tokens != 3+2+3+5 {
			t.Errorf("%d nodes, %d tokens", len(trace.Nodes), trace.tokens)
		}
	}
}

// TestByHandFencesItsPredecessor starts the same eval twice: the later process goes on, the earlier one ends.
func TestByHandFencesItsPredecessor(t *testing.T) {
	r := newTestRun(t)
	r.plays(func(*schemas.Task) *schemas.Trace { return nil })
	first, err := r.open(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	emitted := make(chan struct{})
	once := sync.OnceFunc(func() { close(emitted) })
	go func() {
		_, err := first.Run(ctx, func() {
			if first.Progress().InFlight > 0 {
				once()
			}
		})
		ended <- err
	}()
	<-emitted
	second, err := r.open(func(w *Wish) { w.Resume = first.ID() })
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	// The earlier one writes again once a rollout of its ends.
	for _, task := range records[*schemas.Task](r, pipeline.TopicTasks("catch"))[:2] {
		r.put(pipeline.TopicEvalTraces, scripted(task))
	}
	select {
	case err := <-ended:
		if !errors.Is(err, pipeline.ErrFenced) {
			t.Errorf("the earlier process ended with %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the earlier process goes on")
	}
}

// TestByHandSaysWhatThereIs names the choices where something does not exist.
func TestByHandSaysWhatThereIs(t *testing.T) {
	r := newTestRun(t)
	for want, change := range map[string]func(*Wish){
		"run prl has no policy version 40: it has 0 to 3": func(w *Wish) { w.Policy = "40" },
		"the versions 0 to 3, and the frozen policies":    func(w *Wish) { w.Policy = "tutor" },
		"[teacher]":                     func(w *Wish) { w.Policy = "tutor" },
		"policy version 1 are not here": func(w *Wish) { w.Policy, w.Here = "1", true },
		"those of 0, 2, 3 are":          func(w *Wish) { w.Policy, w.Here = "1", true },
		`no eval by hand "x" of catch in run prl: there is none`: func(w *Wish) { w.Resume = "x" },
		"evals.balls.k = 0": func(w *Wish) { w.Config.K = 0 },
		"no eval by hand of catch with these settings is left unfinished in run": func(w *Wish) { w.Resume = Last },
	} {
		b, err := r.open(change)
		if err == nil {
			b.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}
