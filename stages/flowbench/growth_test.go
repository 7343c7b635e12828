package flowbench

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages"
	"github.com/prl-project/prl/stages/sink"
	"github.com/prl-project/prl/stages/ui"
)

// A restart is what a stage needed until it worked.
type restart struct {
	took  time.Duration
	read  int64 // records
	bytes int64 // in them
}

// restart starts a stage in this process and waits until it works: a stage with a core until it has committed a record that has
// come since, the others until they are ready or have written one.
func (o *oldRun) restart(stage string) restart {
	o.Helper()
	o.fetched.reset()
	start := time.Now()
	s, err := stages.Find(stage)
	if err != nil {
		o.Fatal(err)
	}
	app := o.newApp("one")
	runner, err := s.New(app, s)
	if err != nil {
		o.Fatal(err)
	}
	ctx, cancel := context.WithCancel(o.Context())
	done := make(chan error, 1)
	go func() { done <- runner.Run(ctx) }()
	name := healthName(stage)
	works := o.work(stage, 1, func() bool { return app.Runtime.Health.Ready(name) && o.fetched.tasks.Load() >= o.tasks(stage) })
	o.await(stage, works, func() error {
		select {
		case err := <-done:
			return fmt.Errorf("it ended: %w", err)
		default:
			return nil
		}
	})
	r := restart{took: time.Since(start), read: o.fetched.records.Load(), bytes: o.fetched.bytes.Load()}
	cancel()
	if err := <-done; err != nil {
		o.Fatalf("%s: %v", stage, err)
	}
	return r
}

// healthName is a stage's among what is ready.
func healthName(stage string) string {
	if stage == "envserver" {
		return "envserver.catch"
	}
	return stage
}

// tasks are those that a stage has to read before it works: all that the environment server has in flight.
func (o *oldRun) tasks(stage string) int64 {
	if stage != "envserver" {
		return 0
	}
	return int64(len(o.open[pipeline.TopicTasks("catch")]))
}

// work writes n records for a stage, and says how to tell that it works: where it gets none, that it is ready. Where older work is in
// flight, any commit says so: a stage has nothing to commit before the new records.
func (o *oldRun) work(stage string, n int, ready func() bool) (works func() bool) {
	o.Helper()
	committed := func(topic string, v schemas.Record) func() bool {
		for range n {
			o.emit(topic, v)
		}
		o.flush()
		want := o.next[topic]
		return func() bool {
			at := o.commit(stage, topic)
			if at.Metadata == o.kept[topic] || len(o.open[topic]) == 0 && at.At < want {
				return false
			}
			o.kept[topic] = at.Metadata
			return true
		}
	}
	decided := &schemas.Task{Env: "catch", GroupID: 0, GroupSize: 2, Split: schemas.SplitTrain, Temperature: 1, TopP: 1, MaxTokens: 1, MaxRolloutTokens: 8, TimeoutMs: 1000}
	switch stage {
	case "emitter":
		return committed(pipeline.TopicOutcomes, &schemas.GroupOutcome{Env: "catch", Fate: schemas.FatePacked, Step: new(int64(1))})
	case "scorer":
		return committed(pipeline.TopicTraces, o.trace(decided, 2, 2))
	case "packer":
		return committed(pipeline.TopicSamples, &schemas.SampleGroup{Env: "catch", GroupID: 0, Emitted: 2, Reason: schemas.FateFiltered})
	case "eval":
		return committed(pipeline.TopicEvalTraces, &schemas.Trace{Env: "catch", Eval: "unknown", GroupSize: 1})
	case "sink":
		had := o.files()
		for range n {
			o.emit(pipeline.TopicMetrics, &schemas.MetricPoint{Name: "one more"})
		}
		o.flush()
		return func() bool { return o.files() > had }
	}
	return ready
}

// commit is the newest of a stage's group.
func (o *oldRun) commit(stage, topic string) kadm.Offset {
	o.Helper()
	rt := pipeline.Runtime{Run: o.cfg.Run}
	offsets, err := kadm.NewClient(o.cl).FetchOffsets(o.Context(), rt.TopicName(stage))
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // it has not joined yet
		o.Fatal(err)
	}
	at, _ := offsets.Lookup(rt.TopicName(topic), 0)
	return at.Offset
}

// files is how many the sink has written of metrics.
func (o *oldRun) files() int {
	o.Helper()
	list, err := filepath.Glob(filepath.Join(o.cfg.Sink.Dir, "metrics", "metrics-*.parquet"))
	if err != nil {
		o.Fatal(err)
	}
	return len(list)
}

// await waits until a stage works. ended says why it no longer can.
func (o *oldRun) await(stage string, works func() bool, ended func() error) {
	o.Helper()
	for end := time.Now().Add(time.Minute); !works(); time.Sleep(2 * time.Millisecond) {
		if err := ended(); err != nil {
			o.Fatalf("%s: %v", stage, err)
		}
		if time.Now().After(end) {
			o.Fatalf("%s does not work", stage)
		}
	}
}

// sinkAll writes the history to Parquet.
func (o *oldRun) sinkAll() {
	o.Helper()
	rt := o.newApp("history").Runtime
	cfg := o.cfg.Sink
	cfg.Drain = pipeline.Duration(time.Hour)
	s, err := sink.New(rt, cfg)
	if err != nil {
		o.Fatal(err)
	}
	ctx, cancel := context.WithCancel(o.Context())
	cancel()
	if err := s.Run(ctx); err != nil {
		o.Fatal(err)
	}
}

// restarted are the stages that read no more at a restart than they need. Those that look on from the side read the whole
// run, all but the page.
func restarted() (list []string) {
	for _, s := range stages.Flow {
		if s.Name != "cleanup" && (!s.Aside || s.Name == ui.Name) {
			list = append(list, s.Name)
		}
	}
	return list
}

// TestGrowth restarts every stage of a run that is eight times as old as another, with the same work in flight: it reads no
// more than on the young one, but for policy versions, of which it may read every one.
func TestGrowth(t *testing.T) {
	read := map[string][2]int64{}
	var versions [2]int64
	for i, n := range []int64{640, 8 * 640} {
		o := newOldRun(t, fake(t), n, flight{scoring: 60, packing: 20, nodes: 2, tokens: 2})
		versions[i] = o.newest.Version
		for _, stage := range restarted() {
			if stage == "sink" {
				o.sinkAll()
			}
			r := o.restart(stage)
			t.Logf("%s after %d groups: %v, %d records", stage, o.groups, r.took, r.read)
			counts := read[stage]
			counts[i] = r.read
			read[stage] = counts
		}
	}
	const inFlight = 100
	for stage, counts := range read {
		if more := counts[1] - counts[0]; more > versions[1]-versions[0]+inFlight {
			t.Errorf("%s reads %d records at a start, and %d when the run is eight times as old", stage, counts[0], counts[1])
		}
	}
}

// TestCostRestart holds the stages with a core to what a restart needs: the records they have not finished, each once, what
// lies close between them, their state and what has come since.
func TestCostRestart(t *testing.T) {
	f := flight{scoring: 300, packing: 100, nodes: 2, tokens: 2}
	o := newOldRun(t, fake(t), 640, f)
	finished := 2 * f.packing // traces of the groups that the packer holds, which lie between those that are not finished
	for stage, most := range map[string]int64{"scorer": f.scoring + finished, "packer": f.packing} {
		r := o.restart(stage)
		const also = 4 // its state, that of the commit it is looked for with, and the record that it works off
		if r.read < most/2 || r.read > most+also {
			t.Errorf("%s reads %d records at a start; what it needs are %d", stage, r.read, most)
		}
	}
	// The emitter has nothing unfinished: it reads the tables and its state.
	if r, tables := o.restart("emitter"), o.newest.Version+2; r.read > tables+8 {
		t.Errorf("emitter reads %d records at a start; its tables have %d", r.read, tables)
	}
	tasks := int64(len(o.open[pipeline.TopicTasks("catch")]))
	if r := o.restart("envserver"); o.fetched.tasks.Load() > 3*tasks {
		t.Errorf("envserver reads %d tasks at a start, and %d records; it has %d in flight", o.fetched.tasks.Load(), r.read, tasks)
	}
}
