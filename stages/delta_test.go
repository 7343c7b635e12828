package stages

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// TestARunOfDeltas publishes a version whole every third, the others as what changed, in ordered mode: inference serves
// every one of them. An export of a delta is whole, and so is it in the run that it plays in.
func TestARunOfDeltas(t *testing.T) {
	weights, app := smallRun(t, nil, "trainer.learner=null", "trainer.full_interval=3", "trainer.checkpoint_interval=10", "run.max_steps=5", "run.batch_size=16")
	f, err := app.Runtime.Follow(pipeline.TopicPolicies)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := f.Load(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var kinds []string
	for _, r := range records {
		v := r.Value.(*schemas.PolicyVersion)
		kinds = append(kinds, v.Kind)
		if v.WeightsSHA256() != weights {
			t.Errorf("version %d gives weights %s, a learner that changes nothing gives %s", v.Version, v.WeightsSHA256(), weights)
		}
	}
	if got := strings.Join(kinds, " "); got != "full delta delta full delta full" {
		t.Fatalf("versions are %s", got)
	}
	var models [][]byte
	for _, version := range []int64{0, 4} {
		dir, err := app.export(t.Context(), version)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(filepath.Join(dir, "model.safetensors"))
		if err != nil {
			t.Fatal(err)
		}
		models = append(models, data)
	}
	if !bytes.Equal(models[0], models[1]) {
		t.Error("the export of version 4, a delta, has other weights than that of version 0")
	}
	w := replayed{app}
	out := w.replay(t, Replay{Mode: ReplayRegenerate, Into: w.open(t, "played"), Eval: EvalByHand{Policy: "4"}})
	if !strings.Contains(out, "policy version 4 on catch") {
		t.Errorf("the recorded tasks played by version 4:\n%s", out)
	}
}
