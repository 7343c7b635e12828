package export

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/inference/render"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/sink"
)

const (
	// python is where `make python` puts the interpreter with the packages.
	python = "../../.cache/python"
	// childEnv makes the test binary an export: broker, folder of blobs, folder of the export, format, and folder of the Parquet
	// files, empty for one that follows, between bars.
	childEnv = "PRL_TEST_EXPORT"
	deadline = time.Minute
)

func TestMain(m *testing.M) {
	if spec := os.Getenv(childEnv); spec != "" {
		if err := child(strings.Split(spec, "|")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// A world is a run on a broker of its own.
type world struct {
	*testing.T
	rt       *pipeline.Runtime
	cl       *kgo.Client
	renderer render.Renderer
	blobs    string
	parquet  string
}

func runtimeAt(broker, blobs string) (*pipeline.Runtime, error) {
	run := pipeline.DefaultRunConfig()
	run.Name, run.TracePartitions = "demo", 2
	b, err := pipeline.OpenBlobs(blobs)
	return &pipeline.Runtime{Run: run, Brokers: []string{broker}, Instance: "one", Blobs: b, Health: &pipeline.Health{},
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)), Metrics: pipeline.NewMetrics(prometheus.NewRegistry())}, err
}

func newWorld(t *testing.T) *world {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	w := &world{T: t, blobs: t.TempDir(), parquet: t.TempDir()}
	if w.rt, err = runtimeAt(cluster.ListenAddrs()[0], w.blobs); err != nil {
		t.Fatal(err)
	}
	w.rt.Log = slog.New(slog.NewTextHandler(t.Output(), nil))
	if err := w.rt.SetUp(t.Context(), nil); err != nil {
		t.Fatal(err)
	}
	if w.cl, err = w.rt.Client(kgo.RecordPartitioner(kgo.ManualPartitioner())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.cl.Close)
	tok, err := lm.NewTokenizer("")
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(tok)
	if err != nil {
		t.Fatal(err)
	}
	if w.renderer, err = render.New("", text); err != nil {
		t.Fatal(err)
	}
	v := &schemas.PolicyVersion{Kind: schemas.KindFull, NextOffsets: []int64{0}, Weights: w.blob("w"), Config: w.blob("c"), Tokenizer: w.blob(string(text))}
	w.emit(pipeline.TopicPolicies, v)
	w.emit(pipeline.TopicEnvs, &schemas.EnvInfo{Env: "catch", Version: "1"})
	w.emit(pipeline.TopicEnvs, &schemas.EnvInfo{Env: "tools", Version: "1",
		Tools: `[{"name":"Guess","description":"guesses <b>","schema":{"type":"object","properties":{"word":{"type":"string"}}}}]`})
	return w
}

func (w *world) blob(content string) schemas.BlobRef {
	w.Helper()
	ref, err := w.rt.Blobs.Put(w.Context(), "models", []byte(content))
	if err != nil {
		w.Fatal(err)
	}
	return ref
}

func (w *world) emit(topic string, v schemas.Record) {
	w.Helper()
	rec, err := w.rt.Encode(w.Context(), pipeline.Emission{Topic: topic, Partition: pipeline.AutoPartition, Value: v})
	if err != nil {
		w.Fatal(err)
	}
	if err := w.cl.ProduceSync(w.Context(), rec).FirstErr(); err != nil {
		w.Fatal(err)
	}
}

// talk is a conversation as the environment server records it: the question, then answers and what follows on each.
func (w *world) talk(tools []render.Tool, question string, said ...string) []schemas.Node {
	w.Helper()
	shown, err := w.renderer.Begin([]render.Message{{Role: "system", Content: "Play."}, {Role: "user", Content: question}}, tools)
	if err != nil {
		w.Fatal(err)
	}
	var nodes []schemas.Node
	add := func(role, content string, tokens []int32, sampled int) *schemas.Node {
		n := schemas.Node{Parent: len(nodes) - 1, Role: role, Content: content, TokenIDs: schemas.PackInt32s(tokens), Mask: make([]byte, len(tokens)), Logprobs: make([]byte, 4*len(tokens))}
		for i := len(tokens) - sampled; i < len(tokens); i++ {
			n.Mask[i], n.Temperature = 1, 1
		}
		nodes = append(nodes, n)
		return &nodes[len(nodes)-1]
	}
	for _, m := range shown {
		add(m.Role, m.Content, m.Tokens, 0)
	}
	for i, s := range said {
		if i%2 == 1 {
			more, err := w.renderer.Extend(nil, []render.Message{{Role: "user", Content: s}})
			if err != nil {
				w.Fatal(err)
			}
			add("user", s, more[0].Tokens, 0)
			continue
		}
		opening, answer := w.renderer.GenerationPrompt(), append(w.renderer.Encode(s), w.renderer.Stop()[0])
		add("assistant", s, slices.Concat(opening, answer), len(answer))
	}
	return nodes
}

// A play is a rollout and what became of it.
type play struct {
	trace *schemas.Trace
	fate  schemas.RolloutFate
}

// play makes a rollout of a group of its own, packed into step 3.
func (w *world) play(group int64, reward float64, said ...string) play {
	start := int64(2)
	t := &schemas.Trace{Env: "catch", EnvVersion: "1", GroupID: group, GroupSize: 1, Split: schemas.SplitTrain, TaskIndex: group, Reward: &reward,
		Nodes: w.talk(nil, fmt.Sprintf("question %d", group), said...), PolicyStart: &start, PolicyEnd: &start, StopReason: "done"}
	return play{t, schemas.RolloutFate{Fate: schemas.FatePacked, Reward: &reward, PolicyStart: &start, Tokens: 9}}
}

// run writes rollouts of one group each, and their outcomes.
func (w *world) run(plays ...play) {
	w.Helper()
	for _, p := range plays {
		w.emit(topicOf(p.trace), p.trace)
	}
	for _, p := range plays {
		w.decide(p)
	}
}

func topicOf(t *schemas.Trace) string {
	if t.Eval != "" {
		return pipeline.TopicEvalTraces
	}
	return pipeline.TopicTraces
}

func (w *world) decide(p play) {
	w.Helper()
	step := int64(3)
	o := &schemas.GroupOutcome{Env: p.trace.Env, Eval: p.trace.Eval, GroupID: p.trace.GroupID, TaskIndex: p.trace.TaskIndex, Fate: p.fate.Fate, Rollouts: []schemas.RolloutFate{p.fate}}
	if p.fate.Fate == schemas.FatePacked {
		o.Step = &step
	}
	if p.fate.Fate == schemas.FateFiltered {
		o.Filter = "zero"
	}
	w.emit(pipeline.TopicOutcomes, o)
}

// sink writes everything there is to Parquet.
func (w *world) sink() {
	w.Helper()
	cfg := sink.DefaultConfig()
	cfg.Dir = w.parquet
	s, err := sink.New(w.rt, cfg)
	if err != nil {
		w.Fatal(err)
	}
	ctx, cancel := context.WithCancel(w.Context())
	cancel() // it reads to the end before it stops
	if err := s.Run(ctx); err != nil {
		w.Fatal(err)
	}
}

// export exports the files, and gives what was written to a new folder.
func (w *world) export(set func(*Config)) (string, Summary) {
	w.Helper()
	cfg := DefaultConfig()
	cfg.Out = filepath.Join(w.TempDir(), "out")
	if set != nil {
		set(&cfg)
	}
	e, err := New(w.rt, cfg, "", w.parquet, "")
	if err != nil {
		w.Fatal(err)
	}
	s, err := e.Files(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return cfg.Out, s
}

func (w *world) rows(path string) (list []Row) {
	w.Helper()
	f, err := os.Open(path)
	if err != nil {
		w.Fatal(err)
	}
	defer f.Close()
	read := readLines
	if strings.HasSuffix(path, Parquet) {
		read = func(_ io.Reader, each func(Row)) error { return readParquet(f, each) }
	}
	if err := read(f, func(r Row) { list = append(list, r) }); err != nil {
		w.Fatal(err)
	}
	return list
}

// groups are the groups of rows, in order.
func groups(rows []Row) (ids []int64) {
	for _, r := range rows {
		ids = append(ids, r.Provenance.GroupID)
	}
	slices.Sort(ids)
	return ids
}

// script runs a Python program, whose output is JSON.
func script(t *testing.T, program string, out any, args ...string) {
	t.Helper()
	need.Clients(t, python)
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(python, "bin", "python3"), append([]string{"-c", program}, args...)...)
	cmd.Env = append(os.Environ(), "HF_HOME="+t.TempDir(), "HF_HUB_OFFLINE=1", "HF_DATASETS_OFFLINE=1")
	cmd.Stderr = &stderr
	text, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
}
