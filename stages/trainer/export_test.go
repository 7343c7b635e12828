package trainer

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/prl-project/prl/stages/internal/lm"
)

func TestExportIsALlamaFolder(t *testing.T) {
	run := testRun("export")
	run.MaxSteps = 1
	rt := testRuntime(t, testCluster(t), run)
	packSteps(t, rt, 1, 1)
	runToEnd(t, testTrainer(t, rt))
	history := checkChain(t, rt, 1)
	dir := filepath.Join(t.TempDir(), "models", "v1")
	if err := Export(t.Context(), rt, ModelConfig{}, 1, dir); err != nil {
		t.Fatal(err)
	}
	model, tokenizer, err := lm.LoadFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if tokenizer.Alphabet() != "abc" || model.Config().ModelType != "llama" {
		t.Errorf("alphabet %q, model type %q", tokenizer.Alphabet(), model.Config().ModelType)
	}
	for file, want := range map[string]string{
		"model.safetensors": history[1].Weights.SHA256, "config.json": history[1].Config.SHA256, "tokenizer.json": history[1].Tokenizer.SHA256,
	} {
		data, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		if sum(data) != want {
			t.Errorf("%s is not the published one", file)
		}
	}
	if err := Export(t.Context(), rt, ModelConfig{}, 1, dir); err == nil {
		t.Error("a folder was written over")
	}
	if err := Export(t.Context(), rt, ModelConfig{}, 2, dir+"2"); err == nil {
		t.Error("a version that does not exist was exported")
	}
}
