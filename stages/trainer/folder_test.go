package trainer

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/internal/lm"
	"github.com/prl-project/prl/stages/internal/safetensors"
)

// aFolder is a Hugging Face folder with a model of random weights that a run's micro-batches fit.
func aFolder(t *testing.T) string {
	t.Helper()
	run := testRun("folder")
	run.Seed = 99
	_, model := testConfig()
	m, _, tokenizer, err := newModel(run, model)
	if err != nil {
		t.Fatal(err)
	}
	tok, err := lm.ParseTokenizer(tokenizer)
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "model")
	if err := lm.SaveFolder(dir, m, tok); err != nil {
		t.Fatal(err)
	}
	return dir
}

func readFile(t *testing.T, elem ...string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(elem...))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t *testing.T, data []byte, elem ...string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(elem...), data, 0o666); err != nil {
		t.Fatal(err)
	}
}

// inShards spreads the weights of a folder over two files and an index.
func inShards(t *testing.T, dir string) {
	t.Helper()
	data := readFile(t, dir, fileWeights)
	whole, err := safetensors.ReadHeader(bytes.NewReader(data), int64(len(data)))
	if err != nil {
		t.Fatal(err)
	}
	where := map[string]string{}
	for i, name := range []string{"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"} {
		var tensors []safetensors.Tensor
		for k, tensor := range whole.Tensors {
			if k%2 == i { // so that names are not in the order of shards
				tensors, where[tensor.Name] = append(tensors, tensor), name
			}
		}
		header, err := safetensors.MakeHeader(whole.Metadata, tensors)
		if err != nil {
			t.Fatal(err)
		}
		shard := slices.Clone(header.Raw)
		for _, tensor := range tensors {
			shard = append(shard, data[tensor.From:tensor.To]...)
		}
		writeFile(t, shard, dir, name)
	}
	index, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": len(data)}, "weight_map": where})
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, index, dir, fileIndex)
	if err := os.Remove(filepath.Join(dir, fileWeights)); err != nil {
		t.Fatal(err)
	}
}

// spoil changes a weight in a file of a folder.
func spoil(t *testing.T, elem ...string) {
	t.Helper()
	data := readFile(t, elem...)
	data[len(data)-1] ^= 1
	writeFile(t, data, elem...)
}

func TestShardsAreJoined(t *testing.T) {
	dir := aFolder(t)
	want := readFile(t, dir, fileWeights)
	path := filepath.Join(t.TempDir(), "joined")
	if err := joinShards(dir, path); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readFile(t, path), want) {
		t.Error("the one file of a folder is not taken as it is")
	}
	inShards(t, dir)
	joined := filepath.Join(t.TempDir(), "joined")
	if err := joinShards(dir, joined); err != nil {
		t.Fatal(err)
	}
	params, err := lm.ReadSafetensors(readFile(t, joined))
	if err != nil {
		t.Fatal(err)
	}
	if !slices.IsSortedFunc(params, func(a, b lm.Param) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the tensors are not in the order of their names")
	}
	if diff := largest(t, want, readFile(t, joined)); diff != 0 {
		t.Errorf("the shards' weights differ by %g", diff)
	}
}

// Version 0 is a folder's files as they are. The native learner notices when its weights have changed since.
func TestFolderIsVersionZero(t *testing.T) {
	dir := aFolder(t)
	run := testRun("folder")
	rt := testRuntime(t, testCluster(t), run)
	start1 := func() (func(), func() error) {
		cfg, _ := testConfig()
		tr, err := New(rt, cfg, ModelConfig{Folder: "file://" + dir})
		if err != nil {
			t.Fatal(err)
		}
		return start(t, tr)
	}
	packSteps(t, rt, 1, 1)
	stop, wait := start1()
	zero := published(t, rt, 2)[0]
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	for file, ref := range map[string]string{fileWeights: zero.Weights.SHA256, fileConfig: zero.Config.SHA256, fileTokenizer: zero.Tokenizer.SHA256} {
		if sum(readFile(t, dir, file)) != ref {
			t.Errorf("%s is not the folder's", file)
		}
	}
	spoil(t, dir, fileWeights)
	_, wait = start1()
	if err := wait(); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "other weights than version 0") {
		t.Errorf("with another folder: %v", err)
	}
}

func TestFolderRefuses(t *testing.T) {
	for what, test := range map[string]struct {
		model ModelConfig
		want  string
	}{
		"a URL of elsewhere":     {ModelConfig{Folder: "s3://bucket/model"}, "copy one from elsewhere there first"},
		"another host":           {ModelConfig{Folder: "file://host/model"}, "on the trainer's disk"},
		"a setting beside it":    {func() ModelConfig { m := DefaultModelConfig(); m.Folder, m.Layers = "x", 7; return m }(), "model.layers = 7: leave it out"},
		"no folder":              {ModelConfig{Folder: "no/such"}, "a Hugging Face folder has config.json"},
		"a model that lm cannot": {ModelConfig{Folder: t.TempDir()}, `trainer.learner = "torch" trains`},
	} {
		if what == "a model that lm cannot" {
			writeFile(t, []byte(`{"model_type": "gpt2"}`), test.model.Folder, fileConfig)
			writeFile(t, []byte(`{}`), test.model.Folder, fileTokenizer)
		}
		cfg, _ := testConfig()
		err := test.model.Validate()
		if err == nil {
			_, err = NewNative(testRun("refused"), cfg, test.model)
		}
		if err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", what, err, test.want)
		}
	}
}

// The torch learner trains a folder in shards as the native one does. Once there is a version the folder's weights are not
// read any more; an export has the files beside them.
func TestTorchFolder(t *testing.T) {
	need.Torch(t, torchDir)
	dir, cluster := aFolder(t), testCluster(t)
	model := ModelConfig{Folder: dir}
	native := testRuntime(t, cluster, testRun("folder-native"))
	packSteps(t, native, 1, native.Run.MaxSteps)
	cfg, _ := testConfig()
	tr, err := New(native, cfg, model)
	if err != nil {
		t.Fatal(err)
	}
	runToEnd(t, tr)
	inShards(t, dir)

	rt := testRuntime(t, cluster, testRun("folder-torch"))
	cfg, _ = torchConfig()
	trainer := func() *Trainer {
		tr, err := New(rt, cfg, model)
		if err != nil {
			t.Fatal(err)
		}
		return tr
	}
	packSteps(t, rt, 1, 4)
	stop, wait := start(t, trainer())
	published(t, rt, 5)
	stop()
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	spoil(t, dir, "model-00001-of-00002.safetensors")
	packSteps(t, rt, 5, 5)
	runToEnd(t, trainer())
	final := checkChain(t, rt, 5)[5]
	weights, err := rt.Blobs.Get(t.Context(), final.Weights)
	if err != nil {
		t.Fatal(err)
	}
	want, err := native.Blobs.Get(t.Context(), checkChain(t, native, 5)[5].Weights)
	if err != nil {
		t.Fatal(err)
	}
	if diff := largest(t, want, weights); !(diff <= weightTolerance) {
		t.Errorf("the final weights differ from the native learner's by %g", diff)
	}
	writeFile(t, []byte("a template"), dir, "chat_template.jinja")
	out := filepath.Join(t.TempDir(), "export")
	if err := Export(t.Context(), rt, model, 5, out); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(readFile(t, out, fileWeights), weights) || string(readFile(t, out, "chat_template.jinja")) != "a template" ||
		!bytes.Equal(readFile(t, out, fileConfig), readFile(t, dir, fileConfig)) {
		t.Error("the export is not what was published, with the folder's files")
	}
}
