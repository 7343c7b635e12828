package trainer

import (
	"context"
	"strings"
	"testing"

	"github.com/prl-project/prl/pipeline"
)

// branched is a run of three steps, with checkpoints at versions 0 and 2, and a new run with its topics.
func branched(t *testing.T) (a, b *pipeline.Runtime) {
	t.Helper()
	cluster := testCluster(t)
	run := testRun("a")
	run.MaxSteps = 3
	a = testRuntime(t, cluster, run)
	packSteps(t, a, 1, 3)
	tr := testTrainer(t, a)
	tr.cfg.CheckpointInterval = 2
	runToEnd(t, tr)
	other := testRun("b")
	other.MaxSteps = 3
	return a, testRuntime(t, cluster, other)
}

// A run that begins from a version of another one goes on to the other's weights on the other's batches. That it is begun
// again, by a job that is repeated, does not touch its trainer.
func TestBegin(t *testing.T) {
	a, b := branched(t)
	origin, err := Origin(t.Context(), a, 2)
	if err != nil {
		t.Fatal(err)
	}
	begin := func() error { return Begin(t.Context(), b, "a", a.Blobs, origin, nil) }
	if err := begin(); err != nil {
		t.Fatal(err)
	}
	packSteps(t, b, 3, 3)
	runToEnd(t, testTrainer(t, b))
	want, got := published(t, a, 4), published(t, b, 2)
	if got[0].Version != 2 || got[0].FromRun != "a" || got[0].Final || got[1].Version != 3 || !got[1].Final || got[1].FromRun != "" {
		t.Errorf("versions %+v", got)
	}
	if got[1].Weights.SHA256 != want[3].Weights.SHA256 {
		t.Errorf("weights %s, want those of the other run, %s", got[1].Weights.SHA256, want[3].Weights.SHA256)
	}
	p, err := claim(t.Context(), b)
	if err != nil {
		t.Fatal(err)
	}
	defer p.close()
	if err := begin(); err != nil {
		t.Fatal(err)
	}
	if err := p.commit(context.WithoutCancel(t.Context()), []pipeline.Emission{{Topic: pipeline.TopicPolicies, Partition: pipeline.AutoPartition, Value: got[1]}}, nil); err != nil {
		t.Errorf("the trainer was fenced: %v", err)
	}
}

func TestBeginRefuses(t *testing.T) {
	a, b := branched(t)
	for version, want := range map[int64]string{1: "the nearest that have are 0 and 2", 4: "has versions 0 to 3"} {
		if _, err := Origin(t.Context(), a, version); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("version %d: %v, want %q", version, err, want)
		}
	}
	origin, err := Origin(t.Context(), a, 2)
	if err != nil {
		t.Fatal(err)
	}
	if err := Begin(t.Context(), a, "b", b.Blobs, origin, nil); err == nil || !strings.Contains(err.Error(), "run a has begun, at version 0") {
		t.Errorf("a run that has begun: %v", err)
	}
	for blob, err := range a.Blobs.List(t.Context()) {
		if err == nil && blob.URI == origin.Checkpoint.URI {
			err = a.Blobs.Delete(t.Context(), blob)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Origin(t.Context(), a, 2); err == nil || !strings.Contains(err.Error(), "its checkpoint was cleaned up; the nearest that have are 0 and 3") {
		t.Errorf("a checkpoint that is gone: %v", err)
	}
}
