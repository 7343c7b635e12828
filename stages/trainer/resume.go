package trainer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// A history is the versions of a run without a gap, from the one it began with: 0, or that of another run.
type history []*schemas.PolicyVersion

// at is the version of a number; nil where the run has none of it.
func (h history) at(version int64) *schemas.PolicyVersion {
	if len(h) == 0 || version < h[0].Version || version > h.newest().Version {
		return nil
	}
	return h[version-h[0].Version]
}

// String says which versions there are.
func (h history) String() string {
	if len(h) == 0 {
		return "has no version yet"
	}
	return fmt.Sprintf("has versions %d to %d", h[0].Version, h.newest().Version)
}

func (h history) newest() *schemas.PolicyVersion { return h[len(h)-1] }

// versions reads the published versions.
func versions(ctx context.Context, rt *pipeline.Runtime) (history, error) {
	ctx, cancel := context.WithTimeout(ctx, loadDeadline)
	defer cancel()
	f, err := rt.Follow(pipeline.TopicPolicies)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	recs, err := f.Load(ctx)
	if err != nil {
		return nil, err
	}
	var all history
	for _, r := range recs {
		v, want := r.Value.(*schemas.PolicyVersion), int64(0)
		switch {
		case len(all) > 0:
			want = all.newest().Version + 1
		case v.FromRun != "":
			want = v.Version
		}
		if v.Version != want {
			return nil, pipeline.Fatal("%v is version %d where version %d must come: a record was lost, or another program writes to the topic; restore it or start a new run", r.Ref, v.Version, want)
		}
		all = append(all, v)
	}
	return all, nil
}

// resume brings the learner to a published version from which the newest can be reached by replay, and returns it: the
// newest itself where the learner holds it from before an error, else the last one with a checkpoint.
func (t *Trainer) resume(ctx context.Context, published history) (*schemas.PolicyVersion, error) {
	newest := published.newest()
	if t.learner != nil && t.held == (held{newest.Version, newest.Weights.SHA256}) {
		return newest, nil
	}
	start := time.Now()
	t.discard()
	var from *schemas.PolicyVersion
	for _, v := range slices.Backward(published) {
		if v.Checkpoint != nil {
			from = v
			break
		}
	}
	if from == nil {
		return nil, pipeline.Fatal("no published version has a checkpoint, not even version 0: start a new run")
	}
	learner, err := t.newLearner()
	if err != nil {
		return nil, cannot("make the learner", err)
	}
	defer func() {
		if t.learner == nil {
			learner.Close()
		}
	}()
	config, tokenizer := learner.Files()
	if sum(config) != from.Config.SHA256 || sum(tokenizer) != from.Tokenizer.SHA256 {
		return nil, pipeline.Fatal("version %d was made with another section [model]: set it back, it is fixed for a run", from.Version)
	}
	weights, err := t.blob(ctx, from.Weights, "the weights", from.Version)
	if err != nil {
		return nil, err
	}
	checkpoint, err := t.blob(ctx, *from.Checkpoint, "the checkpoint", from.Version)
	if err != nil {
		return nil, err
	}
	if err := learner.Load(weights); err != nil {
		return nil, cannot(fmt.Sprintf("load the weights of version %d", from.Version), err)
	}
	if err := learner.Restore(checkpoint); err != nil {
		return nil, cannot(fmt.Sprintf("load the checkpoint of version %d", from.Version), err)
	}
	t.learner, t.held = learner, held{from.Version, from.Weights.SHA256}
	t.rt.Metrics.Restore.WithLabelValues(stage).Observe(time.Since(start).Seconds())
	return from, nil
}

// cannot is an error of a learner that could not do what: Fatal, unless another learner may be able to.
func cannot(what string, err error) error {
	if errors.Is(err, pipeline.ErrTransient) {
		return fmt.Errorf("%s: %w", what, err)
	}
	return pipeline.Fatal("%s: %w", what, err)
}

// discard gives up the learner at hand.
func (t *Trainer) discard() {
	if t.learner != nil {
		t.learner.Close()
		t.learner = nil
	}
}

// blob reads a blob that a version names.
func (t *Trainer) blob(ctx context.Context, ref schemas.BlobRef, what string, version int64) ([]byte, error) {
	data, err := t.rt.Blobs.Get(ctx, ref)
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	if err != nil {
		return nil, pipeline.Fatal("%s of version %d cannot be read: restore the blob store, or start a new run: %w", what, version, err)
	}
	return data, nil
}

// train makes the next version, all but what is published with it. While it works, and after an error, the learner holds
// no version.
func (t *Trainer) train(ctx context.Context, micro []*schemas.MicroBatch, offsets []int64) (*schemas.PolicyVersion, []byte, error) {
	learner, step := t.learner, micro[0].Step
	t.learner = nil
	defer func() {
		if t.learner == nil {
			learner.Close()
		}
	}()
	m, err := learner.Step(ctx, step, micro)
	if err != nil {
		return nil, nil, fmt.Errorf("train step %d: %w", step, err)
	}
	weights, err := learner.Weights()
	if err != nil {
		return nil, nil, fmt.Errorf("weights of step %d: %w", step, err)
	}
	v := &schemas.PolicyVersion{
		Version: step, Step: step, Kind: kindFull, NextOffsets: offsets, Skipped: m.Skipped, Metrics: finiteOnly(m.Values),
	}
	t.learner, t.held = learner, held{step, sum(weights)}
	return v, weights, nil
}

// replay trains a step again whose version is published.
func (t *Trainer) replay(ctx context.Context, micro []*schemas.MicroBatch, offsets []int64, published *schemas.PolicyVersion) error {
	if !slices.Equal(offsets, published.NextOffsets) {
		return pipeline.Fatal("step %d ends at offsets %v of batches, and ended at %v when it was trained: restore the topic or start a new run", published.Step, offsets, published.NextOffsets)
	}
	if _, _, err := t.train(ctx, micro, offsets); err != nil {
		return err
	}
	want := published.Weights.SHA256
	if t.held.sha256 == want {
		return nil
	}
	if t.learner.Exact() {
		return pipeline.Fatal("step %d trained again gives weights with SHA-256 %s, published are %s: [trainer], run.max_steps, the program or the kind of CPU is not the one that published it; go back to that one, or start a new run",
			published.Step, t.held.sha256, want)
	}
	weights, err := t.blob(ctx, published.Weights, "the weights", published.Version)
	if err != nil {
		return err
	}
	if err := t.learner.Load(weights); err != nil {
		t.discard()
		return cannot(fmt.Sprintf("load the weights of version %d", published.Version), err)
	}
	t.held.sha256 = want
	return nil
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}
