package envserver

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/envserver/env"
	"github.com/prl-project/prl/stages/envserver/envs/catch"
	"github.com/prl-project/prl/stages/envserver/envs/reversetext"
	"github.com/prl-project/prl/stages/inference"
	"github.com/prl-project/prl/stages/internal/lm"
)

// nativeModel is a small model of the characters that catch and reverse-text need.
func nativeModel(t *testing.T, seed uint64) (*lm.Model, *lm.Tokenizer) {
	t.Helper()
	tok, err := lm.NewTokenizer("abcdefghijklmnopqrstuvwxyz0123456789. ?")
	if err != nil {
		t.Fatal(err)
	}
	cfg := lm.NewConfig(tok.VocabSize(), 16, 2, 2, 1, 32, 96)
	cfg.InitializerRange = 0.5
	m, err := lm.New(cfg, seed)
	if err != nil {
		t.Fatal(err)
	}
	return m, tok
}

// nativeRun is a run of catch and reverse-text without a policy, on a broker of its own.
func nativeRun(t *testing.T) *pipeline.Runtime {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	rt, err := runtimeAt(cluster.ListenAddrs(), t.TempDir(), slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	if err := rt.SetUp(t.Context(), []string{"catch", "reverse-text"}); err != nil {
		t.Fatal(err)
	}
	return rt
}

// publishModel publishes a model as version 0.
func publishModel(t *testing.T, rt *pipeline.Runtime, m *lm.Model, tok *lm.Tokenizer) {
	t.Helper()
	put := func(data []byte, err error) schemas.BlobRef {
		if err != nil {
			t.Fatal(err)
		}
		ref, err := rt.Blobs.Put(t.Context(), "weights", data)
		if err != nil {
			t.Fatal(err)
		}
		return ref
	}
	var weights bytes.Buffer
	if err := lm.WriteSafetensors(&weights, m.Params()); err != nil {
		t.Fatal(err)
	}
	produce(t, rt, pipeline.TopicPolicies, &schemas.PolicyVersion{
		Kind: "full", Weights: put(weights.Bytes(), nil), Config: put(json.Marshal(m.Config())), Tokenizer: put(json.Marshal(tok)), NextOffsets: []int64{0},
	})
}

// TestNativeTeachers plays catch with a frozen teacher, reverse-text with the policy that is shown how, and both with the
// frozen policy, on a real model; what the teachers said is what the models say of the tokens directly.
func TestNativeTeachers(t *testing.T) {
	rt := nativeRun(t)
	live, tok := nativeModel(t, 1)
	teacher, _ := nativeModel(t, 2)
	publishModel(t, rt, live, tok)
	dir := filepath.Join(t.TempDir(), "model-9")
	if err := lm.SaveFolder(dir, teacher, tok); err != nil {
		t.Fatal(err)
	}
	frozen := map[string]inference.FrozenConfig{"old": {Folder: dir}}
	cfg := inference.DefaultConfig()
	cfg.Listen = ""
	server, err := inference.New(rt, cfg, frozen)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- server.Run(ctx) }()

	game, err := catch.New(catch.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	text, err := reversetext.New(reversetext.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	stop := serveAll(t, rt, map[string]env.Environment{"catch": game, "reverse-text": text},
		inference.NewDirectory(server.Model(), frozen, []inference.Use{{Policy: "old", Teaches: true, Tokens: 96}}, rt.Log),
		map[string]Teacher{"catch": {Policy: "old"}, "reverse-text": {Policy: schemas.TeacherSelf, Room: 96}}, nil)
	const each = 12
	for _, name := range []string{"catch", "reverse-text"} {
		produce(t, rt, pipeline.TopicTasks(name), tasks(each, func(i int, task *schemas.Task) {
			task.Env, task.TaskIndex, task.MaxTokens, task.Seed = name, int64(i), 6, int64(i)
			if task.Temperature = 1; i%3 == 0 {
				task.Temperature = 0.7
			}
			if name == "reverse-text" {
				task.GroupID += each
			}
			if i%2 == 1 {
				task.Policy = "old"
			}
		})...)
	}
	weights, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	old := fmt.Sprintf("old@%x", sha256.Sum256(weights))[:len("old@")+8]
	models := map[string]*lm.Model{old: teacher, "self@0": live}
	for _, r := range read(t, rt, pipeline.TopicTraces, covers(2*each)) {
		trace := r.Value.(*schemas.Trace)
		scored(t, trace)
		if (trace.Policy == old) != (trace.TaskIndex%2 == 1) || (trace.PolicyStart == nil) != (trace.Policy == old) {
			t.Fatalf("policy %q from version %v", trace.Policy, trace.PolicyStart)
		}
		var prefix []int32
		teacherName := old
		if trace.Env == "reverse-text" {
			teacherName = "self@0"
			show, err := text.Demonstrate(json.RawMessage(trace.Task), trace.GroupSeed)
			if err != nil {
				t.Fatal(err)
			}
			if prefix, err = tok.RenderMessage("system", show); err != nil {
				t.Fatal(err)
			}
		}
		want := directly(t, models[teacherName], prefix, trace)
		for i, n := range trace.Nodes {
			if !slices.Contains(n.Mask, 1) {
				continue
			}
			if n.RefModel != teacherName {
				t.Fatalf("node %d was taught by %q, want %q", i, n.RefModel, teacherName)
			}
			sameBits(t, "log-probabilities of the teacher", n.RefLogprobs.Values(), want[i])
			if trace.Policy == teacherName {
				sameBits(t, "of the policy that taught itself", n.RefLogprobs.Values(), n.Logprobs.Values())
			}
		}
	}
	stop()
	cancel()
	select {
	case err := <-served:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(deadline):
		t.Fatal("inference does not stop")
	}
}

// directly is what a model thinks of the sampled tokens of each node behind a prefix.
func directly(t *testing.T, m *lm.Model, prefix []int32, trace *schemas.Trace) [][]float32 {
	t.Helper()
	b := lm.Batch{Tokens: slices.Clone(prefix), Mask: make([]byte, len(prefix))}
	for _, n := range trace.Nodes {
		b.Tokens, b.Mask = append(b.Tokens, n.TokenIDs.Values()...), append(b.Mask, n.Mask...)
	}
	temperature := float32(trace.Nodes[1].Temperature)
	b.SeqLens, b.Temperatures = []int32{int32(len(b.Tokens))}, slices.Repeat([]float32{temperature}, len(b.Tokens))
	all, _, err := lm.NewLearner(m).Score(&b)
	if err != nil {
		t.Fatal(err)
	}
	all = all[len(prefix):]
	var byNode [][]float32
	for _, n := range trace.Nodes {
		byNode, all = append(byNode, all[:n.TokenIDs.Len()]), all[n.TokenIDs.Len():]
	}
	return byNode
}

func sameBits(t *testing.T, what string, got, want []float32) {
	t.Helper()
	if !slices.EqualFunc(got, want, func(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }) {
		t.Fatalf("%s\n%v, want\n%v", what, got, want)
	}
}

// A server whose frozen policy has another tokenizer than the run ends, and says why.
func TestNativeTokenizerMismatch(t *testing.T) {
	rt := nativeRun(t)
	live, err := lm.New(lm.NewConfig(tokenizer(t).VocabSize(), 16, 2, 2, 1, 32, 96), 1)
	if err != nil {
		t.Fatal(err)
	}
	publishModel(t, rt, live, tokenizer(t)) // of bytes
	m, tok := nativeModel(t, 2)
	dir := filepath.Join(t.TempDir(), "model-9")
	if err := lm.SaveFolder(dir, m, tok); err != nil {
		t.Fatal(err)
	}
	cfg := inference.DefaultConfig()
	cfg.Listen = ""
	server, err := inference.New(rt, cfg, map[string]inference.FrozenConfig{"old": {Folder: dir}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	if err := server.Run(ctx); err == nil || !strings.Contains(err.Error(), `the frozen policy "old": it has another tokenizer`) {
		t.Errorf("got %v", err)
	}
}
