package stages

import (
	"fmt"
	"math"
	"path/filepath"
	"testing"

	"github.com/prl-project/prl/pipeline/pipelinetest/need"
	"github.com/prl-project/prl/stages/internal/lm"
)

// TestTorchRun runs the pipeline in ordered mode with a model in the shape of Qwen3, once with each learner. What PyTorch has
// trained the inference stage serves at the next step, so that both runs see the same rollouts and end with the same weights,
// up to rounding.
func TestTorchRun(t *testing.T) {
	const dir = "../.cache/torch"
	need.Torch(t, dir)
	const steps = 3
	trained := func(learner string) []lm.Param {
		t.Helper()
		_, app := smallRun(t, nil, "trainer.learner="+learner, fmt.Sprintf("trainer.torch.python=%q", filepath.Join(dir, "bin", "python")),
			"model.type=qwen3", "model.head_dim=32", fmt.Sprintf("run.max_steps=%d", steps))
		m, _, err := lm.LoadFolder(filepath.Join(app.Config.RunDir(), fmt.Sprintf("model-%d", steps)))
		if err != nil {
			t.Fatal(err)
		}
		if m.Config().ModelType != lm.TypeQwen3 {
			t.Errorf("%s has trained a %s", learner, m.Config().ModelType)
		}
		return m.Params()
	}
	native, torch := trained("native"), trained("torch")
	same := true
	for i, p := range native {
		for k, v := range p.Data {
			diff := math.Abs(float64(v - torch[i].Data[k]))
			if same = same && diff == 0; diff > 1e-4 {
				t.Fatalf("weight %d of %s is %g, the native learner's %g", k, p.Name, torch[i].Data[k], v)
			}
		}
	}
	if same {
		t.Error("not one weight differs: PyTorch has trained nothing")
	}
}
