package flowbench

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/sink"
)

// BenchmarkScale measures what a rollout takes of each stage in processes of its own, and of scorer and sink when 1, 2 and 4 of them
// share the work: seconds of CPU of all of them together, which must not grow with their number, and rollouts/s, which the machine's
// cores bound. The broker is kfake in this process; what it takes stands beside. The work lies before the processes when they begin.
func BenchmarkScale(b *testing.B) {
	for _, c := range []struct {
		shape
		stages map[string][]int // numbers of processes
	}{
		{usual, map[string][]int{"emitter": {1}, "envserver": {1}, "scorer": {1, 2, 4}, "packer": {1}, "trainer": {1}, "sink": {1, 2, 4}}},
		{long, map[string][]int{"emitter": {1}, "envserver": {1}, "scorer": {1}, "packer": {1}, "trainer": {1}, "sink": {1}}},
	} {
		b.Run(c.name, func(run *testing.B) {
			brokers := fake(run)
			made := newWorld(run, brokers, c.shape, 0)
			made.fill()
			for _, stage := range []string{"scorer", "packer", "trainer"} {
				made.workOff(stage)
			}
			before := map[string]*world{} // by topic, where its records are
			for _, topic := range []string{pipeline.TopicTraces, pipeline.TopicSamples, pipeline.TopicBatches, pipeline.TopicOutcomes, pipeline.TopicPolicies} {
				before[topic] = made
			}
			for _, stage := range []string{"emitter", "envserver", "scorer", "packer", "trainer", "sink"} {
				for _, n := range c.stages[stage] {
					run.Run(fmt.Sprintf("%s/processes=%d", stage, n), func(b *testing.B) {
						for b.Loop() {
							on := brokers
							if stage != "emitter" { // whose tasks others work off; what the others read many times over is forgotten with their broker
								on = fake(b)
							}
							w := &scaled{world: newWorld(run, on, c.shape, c.rollouts()), stage: stage, before: before}
							w.measure(b, n)
							if w.TB = run; stage == "emitter" {
								before[drillTasks] = w.world
							}
						}
					})
				}
			}
		})
	}
}

var drillTasks = pipeline.TopicTasks(drillName)

// inputs are the topics that a stage works off.
var inputs = map[string][]string{
	"envserver": {drillTasks}, "scorer": {pipeline.TopicTraces}, "packer": {pipeline.TopicSamples}, "trainer": {pipeline.TopicBatches},
	"sink": {drillTasks, pipeline.TopicTraces, pipeline.TopicSamples, pipeline.TopicBatches, pipeline.TopicOutcomes},
}

// rounds is how often a stage gets all of its work again, of other groups, and what part of it: first for its processes to get warm,
// then for what is measured. What a process takes once, the code it loads and the buffers that grow, is told apart: it is no part of what
// a rollout takes. Environment server and sink take several times as long for a rollout as the others; emitter, packer and trainer
// have all the run's steps at once.
func rounds(stage string) (warm, counted, part int) {
	switch stage {
	case "emitter", "packer", "trainer":
		return 0, 1, 1
	case "envserver":
		return 1, 1, 1
	case "sink":
		return 1, 1, 5
	}
	return 2, 2, 1
}

// scaled is a run of which processes do one stage's part.
type scaled struct {
	*world
	stage          string
	before         map[string]*world
	adm            *kadm.Client
	records, bytes map[string]int // by topic
}

func (w *scaled) measure(b *testing.B, n int) {
	w.TB = b
	w.adm, w.records, w.bytes = kadm.NewClient(w.client()), map[string]int{}, map[string]int{}
	warm, counted, part := rounds(w.stage)
	show := w.hide(0, max(1, warm), part)
	var all []*process
	for i := range n {
		spec := w.spec(fmt.Sprint("one-", i))
		if w.stage == "sink" {
			spec.Share = fmt.Sprintf("%d/%d", i, n)
		}
		all = append(all, startProcess(b, spec))
	}
	for _, p := range all {
		p.expect(b, "began")
		p.expect(b, "ready")
	}
	if w.stage == "scorer" {
		w.await("the partitions to be shared", func() bool { return w.shared(n) })
	}
	taken := func() (seconds float64) {
		for _, p := range all {
			seconds += p.usage(b).seconds
		}
		return seconds
	}
	work := func() (took, broker, seconds float64) {
		began := time.Now()
		took, broker = -taken(), -cpuSeconds()
		show()
		if w.stage == "trainer" {
			all[0].expect(b, "ended")
		} else {
			w.await("the work to be done", w.done)
		}
		return took + taken(), broker + cpuSeconds(), time.Since(began).Seconds()
	}
	once := taken()
	took, broker, seconds := work()
	rollouts := float64(w.rollouts()*counted) / float64(part)
	if warm > 0 {
		once += took
		show = w.hide(warm, warm+counted, part)
		took, broker, seconds = work()
		once -= took * float64(warm) / float64(counted)
	}
	b.ReportMetric(1000*max(0, once)/float64(n), "once-cpu-ms/process")
	for _, p := range all {
		p.stop(b)
	}
	b.ReportMetric(rollouts/seconds, "rollouts/s")
	b.ReportMetric(1000*took/rollouts, "cpu-ms/rollout")
	b.ReportMetric(1000*broker/rollouts, "broker-cpu-ms/rollout")
	if w.stage != "sink" {
		return
	}
	b.ReportMetric(float64(w.blobs())/rollouts, "blobs-B/rollout") // those of each round are the same
	rollouts *= float64(warm+counted) / float64(counted)
	for topic, n := range w.bytes { // which has all of them before it
		b.ReportMetric(float64(n)/rollouts, topic+"-B/rollout")
	}
}

// hide writes some rounds of a part of what the stage works off in a transaction: it lies there, and nobody sees it before show is called.
func (w *scaled) hide(first, end, part int) (show func()) {
	w.Helper()
	cl := w.client(kgo.TransactionalID(w.rt.TopicName("hidden")), kgo.TransactionTimeout(deadline))
	if err := cl.BeginTransaction(); err != nil {
		w.Fatal(err)
	}
	for round := first; round < end; round++ {
		for _, topic := range inputs[w.stage] {
			w.copy(cl, topic, round, w.before[topic].count(topic)/part)
		}
	}
	switch {
	case first > 0:
	case w.stage == "emitter": // it waits for these before its first task
		w.copy(cl, pipeline.TopicPolicies, 0, 1)
		w.write(cl, pipeline.TopicEnvs, 0, &schemas.EnvInfo{Env: drillName, Version: "1", TrainTasks: 1 << 20})
	case w.stage == "envserver": // it takes the tokenizer from version 0
		w.copy(cl, pipeline.TopicPolicies, 0, 1)
	}
	return func() {
		if err := cl.EndTransaction(w.Context(), kgo.TryCommit); err != nil {
			w.Fatal(err)
		}
	}
}

// copy writes the first n records of a topic, as this run has them, with the groups of a round.
func (w *scaled) copy(cl *kgo.Client, topic string, round, n int) {
	w.Helper()
	from, groups := w.before[topic], int64(round*w.rollouts()/groupSize)
	from.read(func(_ string, r *kgo.Record) {
		if n--; n < 0 {
			return
		}
		rec, err := from.rt.Decode(w.Context(), r)
		if err != nil {
			w.Fatal(err)
		}
		switch v := rec.Value.(type) {
		case *schemas.Task:
			v.GroupID += groups
		case *schemas.Trace:
			v.GroupID += groups
		case *schemas.SampleGroup:
			v.GroupID += groups
		case *schemas.PolicyVersion:
			for _, ref := range []schemas.BlobRef{v.Weights, v.Config, v.Tokenizer} {
				data, err := from.rt.Blobs.Get(w.Context(), ref)
				if err == nil {
					_, err = w.rt.Blobs.Put(w.Context(), path.Dir(ref.URI), data)
				}
				if err != nil {
					w.Fatal(err)
				}
			}
		}
		w.write(cl, topic, r.Partition, rec.Value)
	}, topic)
	if err := cl.Flush(w.Context()); err != nil {
		w.Fatal(err)
	}
}

func (w *scaled) write(cl *kgo.Client, topic string, partition int32, v schemas.Record) {
	w.Helper()
	r, err := w.rt.Encode(w.Context(), pipeline.Emission{Topic: topic, Partition: partition, Value: v})
	if err != nil {
		w.Fatal(err)
	}
	w.records[topic]++
	w.bytes[topic] += len(r.Value)
	cl.Produce(w.Context(), r, func(_ *kgo.Record, err error) {
		if err != nil {
			w.Error(err)
		}
	})
}

func (w *scaled) await(what string, there func() bool) {
	w.Helper()
	for end := time.Now().Add(deadline); !there(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.Fatalf("waited for %s in vain", what)
		}
	}
}

// shared reports whether the stage's group has n members, and each of them a partition where there are enough.
func (w *scaled) shared(n int) bool {
	w.Helper()
	groups, err := w.adm.DescribeGroups(w.Context(), w.rt.TopicName(w.stage))
	if err != nil {
		w.Fatal(err)
	}
	for _, g := range groups {
		if g.State != "Stable" || len(g.Members) != n {
			return false
		}
		for _, m := range g.Members {
			if a, ok := m.Assigned.AsConsumer(); !ok || len(a.Topics) == 0 {
				return false
			}
		}
	}
	return len(groups) > 0
}

// done reports whether the stage has done all.
func (w *scaled) done() bool {
	w.Helper()
	switch w.stage {
	case "emitter":
		if w.end(drillTasks) < w.rollouts() { // with what ends its transactions
			return false
		}
		if w.records[pipeline.TopicOutcomes] == 0 {
			w.copy(w.client(), pipeline.TopicOutcomes, 0, w.rollouts()/groupSize)
		}
		return w.committed(pipeline.TopicOutcomes)
	case "envserver":
		return w.end(pipeline.TopicTraces) >= w.records[drillTasks]
	case "sink":
		for topic := range w.records {
			if !w.filed(topic) {
				return false
			}
		}
		return true
	}
	return w.committed(inputs[w.stage][0])
}

// count is how many records a topic has.
func (w *world) count(topic string) (n int) {
	w.read(func(string, *kgo.Record) { n++ }, topic)
	return n
}

// end is how many offsets a topic has.
func (w *scaled) end(topic string) (n int) {
	w.Helper()
	ends, err := w.adm.ListCommittedOffsets(w.Context(), w.rt.TopicName(topic))
	if err != nil {
		w.Fatal(err)
	}
	ends.Each(func(o kadm.ListedOffset) { n += int(o.Offset) })
	return n
}

// behind reports whether a position in each partition of a topic is behind its last record, as the end of a transaction may be.
func (w *scaled) behind(topic string, at func(partition int32) int64) bool {
	w.Helper()
	ends, err := w.adm.ListEndOffsets(w.Context(), w.rt.TopicName(topic))
	if err != nil {
		w.Fatal(err)
	}
	all := true
	ends.Each(func(o kadm.ListedOffset) { all = all && at(o.Partition) >= o.Offset-1 })
	return all
}

// committed reports whether the stage has finished with a topic.
func (w *scaled) committed(topic string) bool {
	w.Helper()
	offsets, err := w.adm.FetchOffsets(w.Context(), w.rt.TopicName(w.stage))
	if err != nil {
		w.Fatal(err)
	}
	return w.behind(topic, func(p int32) int64 { return offsets[w.rt.TopicName(topic)][p].At })
}

// filed reports whether all records of a topic are in files.
func (w *scaled) filed(topic string) bool {
	w.Helper()
	files, err := sink.OpenFiles(w.app.Config.Sink.Dir, topic)
	if errors.Is(err, fs.ErrNotExist) {
		return false
	}
	if err != nil {
		w.Fatal(err)
	}
	return w.behind(topic, func(p int32) int64 { return files.Spans[p].End })
}

// blobs is the bytes in the run's blob store.
func (w *scaled) blobs() (bytes int64) {
	w.Helper()
	err := filepath.WalkDir(filepath.Join(w.app.Config.RunDir(), "blobs"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err == nil {
			bytes += info.Size()
		}
		return err
	})
	if err != nil {
		w.Fatal(err)
	}
	return bytes
}
