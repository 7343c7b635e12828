package trainer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
	"github.com/prl-project/prl/stages/internal/weights"
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
	if t.learner != nil && t.holds == newest.Version && t.stored == (stored{newest.Version, newest.Weights.SHA256}) {
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
	if err := t.restore(ctx, published, from); err != nil {
		t.discard()
		return nil, err
	}
	t.rt.Metrics.Restore.WithLabelValues(t.as).Observe(time.Since(start).Seconds())
	return from, nil
}

// restore makes a learner and brings it to a version with a checkpoint.
func (t *Trainer) restore(ctx context.Context, published history, from *schemas.PolicyVersion) (err error) {
	adapter := t.cfg.Torch.LoRA.Rank > 0
	if from != published[0] && adapter != (from.Kind == schemas.KindLoRA) {
		return pipeline.Fatal("version %d is of kind %s, trainer.torch.lora.rank = %d: set it back, what is trained is fixed for a run", from.Version, from.Kind, t.cfg.Torch.LoRA.Rank)
	}
	base := "" // version 0, which the learner makes itself
	if t.cfg.Learner == LearnerTorch && (t.model.Folder != "" || adapter) {
		base = t.scratch.path("base")
		defer os.Remove(base) // an error: the folder goes with the process
		if err := t.fetchWhole(ctx, published, from, base); err != nil {
			return err
		}
	}
	learner, err := t.newLearner(ctx, base)
	if err != nil {
		return cannot("make the learner", err)
	}
	t.learner, t.holds = learner, from.Version
	if err := t.agree(ctx, published, from.Version); err != nil {
		return err
	}
	config, tokenizer := t.learner.Files()
	if sum(config) != from.Config.SHA256 || sum(tokenizer) != from.Tokenizer.SHA256 {
		return pipeline.Fatal("version %d was made with another section [model]: set it back, it is fixed for a run", from.Version)
	}
	if zero := published[0]; zero.Version == 0 && t.learner.Exact() {
		switch same, err := t.same(ctx, zero); {
		case err != nil:
			return err
		case !same:
			return pipeline.Fatal("[model] and run.seed give other weights than version 0 has, with SHA-256 %s: set back what was changed, also in model.folder, they are fixed for a run", zero.Weights.SHA256)
		}
	}
	weights := ""
	if base == "" || from.Kind == schemas.KindLoRA {
		weights = t.scratch.path("weights")
		defer os.Remove(weights)
		if err := t.fetchTrained(ctx, published, from, weights); err != nil {
			return err
		}
	}
	checkpoint := t.scratch.path("checkpoint")
	defer os.Remove(checkpoint)
	if err := unreadable(ctx, t.rt.Blobs.Fetch(ctx, *from.Checkpoint, checkpoint), "the checkpoint", from.Version); err != nil {
		return err
	}
	return t.load(ctx, from, weights, checkpoint)
}

// load loads files of a published version.
func (t *Trainer) load(ctx context.Context, v *schemas.PolicyVersion, weights, checkpoint string) error {
	if err := t.learner.Load(ctx, weights, checkpoint); err != nil {
		return cannot(fmt.Sprintf("load version %d", v.Version), err)
	}
	t.stored = stored{v.Version, v.Weights.SHA256}
	return nil
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
	if t.lead != nil {
		_ = t.lead.Close() // nothing is sent on it
		t.lead = nil
	}
	if t.learner != nil {
		t.learner.Close()
		t.learner = nil
	}
}

// fetchWhole brings the whole weights of a version, or those under its adapter, to a file.
func (t *Trainer) fetchWhole(ctx context.Context, published history, v *schemas.PolicyVersion, path string) error {
	chain, err := weights.NewHistory(published...).Chain(v)
	if err == nil {
		err = chain.Fetch(ctx, t.rt.Blobs, path)
	}
	return unreadable(ctx, err, "the weights", v.Version)
}

// fetchTrained brings the weights of a version that are trained to a file: its adapter or all.
func (t *Trainer) fetchTrained(ctx context.Context, published history, v *schemas.PolicyVersion, path string) error {
	if v.Kind == schemas.KindLoRA {
		return unreadable(ctx, t.rt.Blobs.Fetch(ctx, v.Weights, path), "the adapter", v.Version)
	}
	return t.fetchWhole(ctx, published, v, path)
}

// unreadable is what err means that came of reading what a version names.
func unreadable(ctx context.Context, err error, what string, version int64) error {
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, pipeline.ErrTransient):
		return fmt.Errorf("read %s of version %d: %w", what, version, err)
	}
	return pipeline.Fatal("%s of version %d cannot be read: restore the blob store, or start a new run: %w", what, version, err)
}

// replay trains a step again whose version is published. After it the learner holds what is published.
func (t *Trainer) replay(ctx context.Context, in *prepared, published history, old *schemas.PolicyVersion) error {
	for r := range in.offsets {
		if !t.reads(r) {
			in.offsets[r] = old.NextOffsets[r] // which another rank's process holds against what it has read
		}
	}
	if !slices.Equal(in.offsets, old.NextOffsets) {
		return pipeline.Fatal("step %d ends at offsets %v of batches, and ended at %v when it was trained: restore the topic or start a new run", old.Step, in.offsets, old.NextOffsets)
	}
	m, err := t.train(ctx, in)
	if err != nil {
		return err
	}
	for _, name := range []string{"lr", "entropy_coef"} { // which follow from the settings alone, whatever computes the rest
		was, had := old.Metrics[name]
		if is, has := m.Values[name]; had && has && is != was {
			return pipeline.Fatal("step %d trained again has %s = %g, and had %g when it was published: [trainer] or run.max_steps is not what it was; set it back, or start a new run", old.Step, name, is, was)
		}
	}
	if !t.learner.Exact() {
		return t.takeMade(ctx, published, old)
	}
	switch same, err := t.same(ctx, old); {
	case err != nil:
		return err
	case !same:
		return pipeline.Fatal("step %d trained again gives other weights than those with SHA-256 %s, which are published: [trainer], run.max_steps, the program or the kind of CPU is not the one that published it; go back to that one, or start a new run",
			old.Step, old.WeightsSHA256())
	}
	t.stored = stored{old.Version, old.Weights.SHA256}
	return nil
}

// take gives the learner the weights of a published version instead of those that it has made again.
func (t *Trainer) take(ctx context.Context, published history, v *schemas.PolicyVersion) error {
	path := t.scratch.path("weights")
	defer os.Remove(path) // an error: the folder goes with the process
	err := t.fetchTrained(ctx, published, v, path)
	if err == nil {
		err = t.load(ctx, v, path, "")
	}
	if err != nil {
		t.discard()
	}
	return err
}

// same reports whether the learner's weights are, to the byte, those of a published version.
func (t *Trainer) same(ctx context.Context, published *schemas.PolicyVersion) (bool, error) {
	again := &made{PolicyVersion: &schemas.PolicyVersion{Version: published.Version}}
	if err := t.copyInto(ctx, again); err != nil {
		return false, err
	}
	path := t.scratch.path("again")
	defer os.Remove(path) // an error: the folder goes with the process
	if err := again.snapshot.Weights(ctx, path); err != nil {
		return false, fmt.Errorf("write version %d: %w", published.Version, err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return false, fmt.Errorf("read version %d: %w", published.Version, err)
	}
	return sum(data) == published.WeightsSHA256(), nil
}

func sum(data []byte) string {
	s := sha256.Sum256(data)
	return hex.EncodeToString(s[:])
}
