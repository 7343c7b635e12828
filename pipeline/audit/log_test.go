package audit

import (
	"bytes"
	"cmp"
	"compress/flate"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/packer"
	"github.com/prl-project/prl/stages/scorer"
)

// A testLog is what a small run leaves behind. The scorer's and the packer's cores make their part of it; the rest is
// written here.
type testLog struct {
	t       testing.TB
	run     pipeline.RunConfig
	dir     string // of the blobs
	blobs   *pipeline.Blobs
	records []*record
	next    map[part]int64
	scorers map[int32]*reader
	packer  *reader
	others  map[stateKey]*reader
	step    int64
}

// A reader is a stage's input partition: its core, if one is driven here, and what it has not finished.
type reader struct {
	stage string
	input part
	core  pipeline.Core
	open  map[int64]bool
	next  int64
}

const groupSize = 2

// newLog is the log of a run of two steps. Asynchronous: groups 0 and 1 are trained in step 1, 3 and 4 in step 2, 2 is
// filtered, 5 times out after a refill, 6 is cancelled. In ordered mode groups 0 and 1, then 2 and 3 are trained. An
// eval plays one example.
func newLog(t testing.TB, ordered bool) *testLog {
	t.Helper()
	l := &testLog{t: t, dir: t.TempDir(), next: map[part]int64{}, scorers: map[int32]*reader{}, others: map[stateKey]*reader{}, run: pipeline.RunConfig{
		Name: "t", Seed: 1, MaxSteps: 2, MaxAsyncLevel: 1, MaxOffPolicySteps: 1, BatchSize: 4, SeqLen: 16, Ranks: 2, TracePartitions: 2, TaskPartitions: 2,
	}}
	if ordered {
		l.run.MaxAsyncLevel, l.run.MaxOffPolicySteps = 0, 0
	}
	var err error
	if l.blobs, err = pipeline.OpenBlobs(l.dir); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.blobs.Close() }) //nolint:errcheck // a folder that goes away
	for p := range int32(l.run.TracePartitions) {
		core, err := scorer.New(l.run, scorer.DefaultConfig(), 2)(p, nil)
		if err != nil {
			t.Fatal(err)
		}
		l.scorers[p] = newReader("scorer", pipeline.TopicTraces, p, core)
	}
	core, err := packer.New(l.run, packer.DefaultConfig())(0, nil)
	if err != nil {
		t.Fatal(err)
	}
	l.packer = newReader("packer", pipeline.TopicSamples, 0, core)
	l.put(pipeline.TopicEnvs, 0, &schemas.EnvInfo{Env: "e", TrainTasks: 9, EvalTasks: 9, MaxTurns: 1})
	l.publish(0)
	l.evaluate()
	if ordered {
		l.playOrdered()
	} else {
		l.playFree()
	}
	l.put(pipeline.TopicMetrics, 0, &schemas.MetricPoint{Name: "loss", Value: 1, Step: new(int64(1))})
	return l
}

func newReader(stage, topic string, partition int32, core pipeline.Core) *reader {
	return &reader{stage: stage, input: part{topic, partition}, core: core, open: map[int64]bool{}}
}

func (l *testLog) playFree() {
	for id := range int64(7) {
		l.ask(l.task(id, 0))
	}
	l.play(1, 0, 0.5, 0)
	l.play(1, 1, 1, 0)
	l.play(2, 0, 1, 0)
	l.play(2, 1, 1, 0)
	l.play(0, 0, 0, 0)
	l.garbage()
	l.play(0, 1, 1, 0) // step 1
	l.play(1, 0, 0.5, 0)
	l.play(3, 0, 0.25, 0, 1)
	l.play(5, 0, 1, 1)
	l.play(3, 1, 0.75, 1)
	l.fail(5, 1, 0, schemas.ErrorTimedOut)
	l.play(4, 1, 1, 1)
	l.play(4, 0, 0, 1) // step 2
	l.fail(6, 0, 0, schemas.ErrorCancelled)
	l.fail(6, 1, 0, schemas.ErrorCancelled)
}

func (l *testLog) playOrdered() {
	for id := range int64(4) {
		step := id/2 + 1
		t := l.task(id, 0)
		t.Step, t.Wave, t.WaveFirst, t.WaveLast, t.PinVersion = step, 1, 2*step-2, 2*step-1, new(step-1)
		l.ask(t)
		l.play(id, 0, 0, step-1)
		l.play(id, 1, 1, step-1)
	}
}

func (l *testLog) task(id int64, index int) schemas.Task {
	return schemas.Task{
		Env: "e", GroupID: id, GroupSize: groupSize, RolloutIndex: index, Split: schemas.SplitTrain, TaskIndex: id + 100, GroupSeed: id,
		Task: fmt.Sprintf(`{"n": %d, "unknown": {"x": [1, 2.50]}}`, id), Temperature: 0.5, TopP: 1, MaxTokens: 4, MaxRolloutTokens: 16, TimeoutMs: 1000,
	}
}

// ask emits the tasks of a group and lets an environment server finish them.
func (l *testLog) ask(t schemas.Task) {
	for i := range t.GroupSize {
		t := t
		t.RolloutIndex = i
		topic := pipeline.TopicTasks(t.Env)
		l.read("envserver", l.put(topic, int32(t.GroupID%2), &t))
	}
}

// result is the trace of a rollout, as its task has it.
func (l *testLog) result(id int64, index int) *schemas.Trace {
	_, t := find[*schemas.Task](l, pipeline.TopicTasks("e"), func(t *schemas.Task) bool { return t.GroupID == id && t.RolloutIndex == index && t.Eval == "" })
	return traceOf(t)
}

func traceOf(t *schemas.Task) *schemas.Trace {
	return &schemas.Trace{
		Env: t.Env, Eval: t.Eval, GroupID: t.GroupID, GroupSize: t.GroupSize, RolloutIndex: t.RolloutIndex, Split: t.Split, TaskIndex: t.TaskIndex,
		Task: t.Task[:len(t.Task)-1] + `, "played": true}`, GroupSeed: t.GroupSeed, PinVersion: t.PinVersion,
		Step: t.Step, Wave: t.Wave, WaveFirst: t.WaveFirst, WaveLast: t.WaveLast,
	}
}

// play writes the trace of a rollout, sampled by the versions: a prompt, an answer, and two replies to it, so that two
// branches share the answer.
func (l *testLog) play(id int64, index int, reward float64, versions ...int64) {
	t := l.result(id, index)
	l.answer(t, reward, 0.5, versions...)
	l.deliver(t)
}

func (l *testLog) answer(t *schemas.Trace, reward, temperature float64, versions ...int64) {
	t.Reward, t.Rewards = &reward, map[string]*float64{"r": &reward, "none": nil}
	word := int32(100*t.GroupID + 10*int64(t.RolloutIndex) + l.next[part{pipeline.TopicTraces, int32(t.GroupID % 2)}])
	t.Nodes = []schemas.Node{
		node(-1, 0, 0, word, 1, 2), node(0, 2, temperature, 3, word, 4), node(1, 1, temperature, 5, 6), node(1, 2, temperature, 7, word, 8),
	}
	t.Nodes[0].Images = []schemas.Image{{Mime: "image/png", Alt: "a dot", Data: []byte{0x89, 'P', 0xff}, SHA256: strings.Repeat("ab", 32)}}
	for i := range versions {
		t.Nodes[1].Versions = append(t.Nodes[1].Versions, schemas.VersionRun{Offset: i + 1, Version: versions[i]})
	}
	last := versions[len(versions)-1]
	t.Nodes[2].Versions, t.Nodes[3].Versions = []schemas.VersionRun{{Version: last}}, []schemas.VersionRun{{Version: last}}
	t.PolicyStart, t.PolicyEnd = &versions[0], &last
}

// node is a message of which the last tokens are sampled.
func node(parent, sampled int, temperature float64, ids ...int32) schemas.Node {
	n := schemas.Node{Parent: parent, Role: "user", Temperature: temperature, TokenIDs: schemas.PackInt32s(ids), Mask: make([]byte, len(ids))}
	probs := make([]float32, len(ids))
	for k := len(ids) - sampled; k < len(ids); k++ {
		n.Role, n.Mask[k], probs[k] = "assistant", 1, -float32(ids[k])/64
	}
	n.Logprobs = schemas.PackFloat32s(probs)
	return n
}

func (l *testLog) fail(id int64, index, attempt int, why string) {
	t := l.result(id, index)
	t.Attempt, t.Errors, t.Instance = attempt, []schemas.TraceError{{Type: why, Message: "test"}}, "emitter"
	l.deliver(t)
}

// garbage is a record of traces that cannot be read, and what the scorer does with it.
func (l *testLog) garbage() {
	r := l.put(pipeline.TopicTraces, 0, nil)
	r.Raw, r.Err = []byte("garbage"), fmt.Errorf("not a record")
	s := l.scorers[0]
	s.next = r.Offset + 1
	l.refuse(s, r)
	l.state(s)
}

func (l *testLog) refuse(s *reader, r *record) *record {
	d := l.put(pipeline.TopicDLQ, 0, nil)
	d.Key, d.Raw = fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset), r.Raw
	d.Headers = map[string]string{"prl-stage": s.stage, "prl-error": "cannot be read"}
	return d
}

// deliver writes a trace, lets its scorer and the packer work, and publishes the version of a step that was cut.
func (l *testLog) deliver(t *schemas.Trace) {
	p := int32(t.GroupID % 2)
	for _, sg := range l.feed(l.scorers[p], l.put(pipeline.TopicTraces, p, t)) {
		if sg.Topic != pipeline.TopicSamples {
			continue // a failed rollout is asked for again
		}
		for _, r := range l.feed(l.packer, sg) {
			if o, ok := r.Value.(*schemas.GroupOutcome); ok {
				l.read("emitter", r)
				if o.Step != nil && *o.Step > l.step {
					l.step++
				}
			}
		}
	}
	if _, v := find[*schemas.PolicyVersion](l, pipeline.TopicPolicies, func(v *schemas.PolicyVersion) bool { return v.Version == l.step }); v == nil {
		l.publish(l.step)
	}
}

func (l *testLog) publish(step int64) {
	v := &schemas.PolicyVersion{Version: step, Step: step, Kind: "full", Final: step == l.run.MaxSteps}
	for rank := range l.run.Ranks {
		v.NextOffsets = append(v.NextOffsets, l.next[part{pipeline.TopicBatches, int32(rank)}])
	}
	v.Weights, v.Config, v.Tokenizer = l.blob(fmt.Sprint("weights ", step)), l.blob("config"), l.blob("tokenizer")
	l.put(pipeline.TopicPolicies, 0, v)
}

// blob puts bytes into the blob store, without waiting for the disk.
func (l *testLog) blob(text string) schemas.BlobRef {
	name := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	if err := os.WriteFile(filepath.Join(l.dir, name), []byte(text), 0o600); err != nil {
		l.t.Fatal(err)
	}
	return schemas.BlobRef{URI: name, Bytes: int64(len(text)), SHA256: name}
}

// evaluate plays one example of an eval of version 0.
func (l *testLog) evaluate() {
	t := l.task(0, 0)
	t.Eval, t.GroupSize, t.Split, t.PinVersion, t.Temperature = "q", 1, schemas.SplitEval, new(int64(0)), 0
	l.ask(t)
	trace := traceOf(&t)
	l.answer(trace, 1, 0, 0)
	l.read("eval", l.put(pipeline.TopicEvalTraces, 0, trace))
	l.read("emitter", l.put(pipeline.TopicOutcomes, 0, &schemas.GroupOutcome{Env: "e", Eval: "q", TaskIndex: t.TaskIndex, Fate: schemas.FateEvaluated, Rollouts: []schemas.RolloutFate{
		{Fate: schemas.FateEvaluated, Reward: trace.Reward, PolicyStart: new(int64(0)), Tokens: 17},
	}}))
	l.put(pipeline.TopicEvals, 0, &schemas.EvalResult{Eval: "q", Env: "e", Examples: 1, K: 1, Episodes: 1, AvgAtK: 1, PassAtK: 1})
}

// put appends a record to a partition.
func (l *testLog) put(topic string, partition int32, v schemas.Record) *record {
	p := part{topic, partition}
	r := &record{Record: pipeline.Record{Ref: pipeline.Ref{Topic: topic, Partition: partition, Offset: l.next[p]}, Value: v}}
	if v != nil {
		spec, _ := pipeline.TopicOf(topic)
		r.Key = spec.Key(v)
	}
	l.next[p]++
	l.records = append(l.records, r)
	return r
}

// feed gives a core a record and writes what it makes of it.
func (l *testLog) feed(s *reader, r *record) (made []*record) {
	var out pipeline.Out
	if err := s.core.Process(r.Record, &out); err != nil {
		l.t.Fatal(err)
	}
	s.open[r.Offset], s.next = true, r.Offset+1
	for _, ref := range out.Finished {
		delete(s.open, ref.Offset)
	}
	for _, e := range out.Emitted {
		spec, _ := pipeline.TopicOf(e.Topic)
		p := int32(0)
		if spec.Partition != nil {
			p = spec.Partition(e.Value, int32(l.run.Ranks))
		}
		made = append(made, l.put(e.Topic, p, e.Value))
	}
	l.state(s)
	return made
}

// read lets a stage without a core take a record and finish it.
func (l *testLog) read(stage string, r *record) {
	k := stateKey{stage, part{r.Topic, r.Partition}}
	s := l.others[k]
	if s == nil {
		s = newReader(stage, r.Topic, r.Partition, nil)
		l.others[k] = s
	}
	s.next = r.Offset + 1
	l.state(s)
}

func (l *testLog) state(s *reader) {
	low := s.next
	for o := range s.open {
		low = min(low, o)
	}
	v := &schemas.StageState{Stage: s.stage, Topic: s.input.topic, Partition: int(s.input.partition), LowOffset: low, NextOffset: s.next}
	v.Unfinished = bits(l.t, low, s.next, s.open)
	l.put(pipeline.TopicState, int32(slices.Index(pipeline.StateStages, s.stage)), v)
}

// bits is an unfinished set as a state record holds it.
func bits(t testing.TB, low, next int64, open map[int64]bool) []byte {
	if len(open) == 0 {
		return nil
	}
	set := make([]byte, (next-low+7)/8)
	for o := range open {
		set[(o-low)/8] |= 1 << ((o - low) % 8)
	}
	var b bytes.Buffer
	w, err := flate.NewWriter(&b, flate.HuffmanOnly)
	if err == nil {
		_, err = w.Write(set)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// find is the first record of a topic that is as wanted.
func find[T schemas.Record](l *testLog, topic string, want func(T) bool) (*record, T) {
	for _, r := range l.records {
		if v, ok := r.Value.(T); ok && r.Topic == topic && want(v) {
			return r, v
		}
	}
	var none T
	return nil, none
}

// last is the newest record of a topic's partition.
func (l *testLog) last(topic string, partition int32) *record {
	for _, r := range slices.Backward(l.records) {
		if r.Topic == topic && r.Partition == partition {
			return r
		}
	}
	l.t.Fatalf("%s/%d is empty", topic, partition)
	return nil
}

func (l *testLog) drop(gone *record) {
	l.records = slices.DeleteFunc(l.records, func(r *record) bool { return r == gone })
}

// audit feeds the log to an auditor.
func (l *testLog) audit(cfg Config) *Report {
	l.t.Helper()
	cfg.Runtime, cfg.Envs = &pipeline.Runtime{Run: l.run, Blobs: l.blobs}, []string{"e"}
	cfg.Advantages = map[string]Advantage{"e": MeanFree}
	a := newAuditor(cfg)
	order := topicsOf(cfg.Envs)
	slices.SortStableFunc(l.records, func(x, y *record) int {
		return cmp.Or(cmp.Compare(slices.Index(order, x.Topic), slices.Index(order, y.Topic)), cmp.Compare(x.Partition, y.Partition), cmp.Compare(x.Offset, y.Offset))
	})
	for _, r := range l.records {
		if r.Value != nil {
			b, err := schemas.Encode(r.Value)
			if err != nil {
				l.t.Fatal(err)
			}
			r.Raw = b
		}
		a.add(*r)
	}
	if err := a.checkBlobs(l.t.Context(), l.blobs); err != nil {
		l.t.Fatal(err)
	}
	if cfg.Parquet != "" {
		if err := a.readParquet(l.t.Context(), cfg.Parquet); err != nil {
			l.t.Fatal(err)
		}
	}
	return a.finish()
}
