package trainer

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// TestOnlyPublishedSafetensorsAreLoaded offers a restart and an export weights that are not the record's, and a file of
// another kind that is: the trainer stops, and nothing is exported.
func TestOnlyPublishedSafetensorsAreLoaded(t *testing.T) {
	run := testRun("weights")
	run.MaxSteps = 1
	blobs := t.TempDir()
	rt := setUp(t, testCluster(t), blobs, run)
	packSteps(t, rt, 1, 1)
	runToEnd(t, testTrainer(t, rt))
	published := *checkChain(t, rt, 1)[1]
	weights, err := rt.Blobs.Get(t.Context(), published.Weights)
	if err != nil {
		t.Fatal(err)
	}
	stored := func(data []byte, as schemas.BlobRef) schemas.BlobRef {
		ref, err := rt.Blobs.Put(t.Context(), "spoiled", data)
		if err != nil {
			t.Fatal(err)
		}
		as.URI = ref.URI
		return as
	}
	flipped := append([]byte(nil), weights...)
	flipped[len(flipped)-1] ^= 1
	pickle := []byte("\x80\x04\x95\x0e\x00\x00\x00\x00\x00\x00\x00\x8c\x02os\x94\x8c\x06system\x94\x93\x94.")
	longer := published.Weights
	longer.Bytes++
	for what, c := range map[string]struct {
		weights schemas.BlobRef
		want    string
	}{
		"another hash":   {stored(flipped, published.Weights), "is not the one its record names"},
		"another length": {longer, "is not the one its record names"},
		"cut short":      {stored(weights[:len(weights)/2], published.Weights), "is not the one its record names"},
		"a pickle":       {stored(pickle, schemas.BlobRef{Bytes: int64(len(pickle)), SHA256: sum(pickle)}), "safetensors"},
	} {
		v := published
		v.Weights = c.weights
		tr := opened(t, rt)
		if _, err := tr.resume(t.Context(), []*schemas.PolicyVersion{&v}); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the restart's error is %v, want %q", what, err, c.want)
		}
		if tr.learner != nil {
			t.Errorf("%s: the learner holds the weights", what)
		}
		dir := filepath.Join(t.TempDir(), "model")
		if err := export(t.Context(), rt, ModelConfig{}, history{&v}, &v, dir); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: the export's error is %v, want %q", what, err, c.want)
		}
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("%s: the folder is there", what)
		}
	}
	v := published
	checkpoint := stored([]byte("no checkpoint"), *published.Checkpoint)
	v.Checkpoint = &checkpoint
	if _, err := opened(t, rt).resume(t.Context(), []*schemas.PolicyVersion{&v}); !errors.Is(err, pipeline.ErrFatal) || !strings.Contains(err.Error(), "is not the one its record names") {
		t.Errorf("another checkpoint: error %v", err)
	}
}

// opened is a trainer as in a session.
func opened(t *testing.T, rt *pipeline.Runtime) *Trainer {
	t.Helper()
	tr := testTrainer(t, rt)
	if err := tr.open(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tr.end)
	return tr
}
