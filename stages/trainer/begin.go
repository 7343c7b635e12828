package trainer

import (
	"context"
	"fmt"

	"github.com/prl-project/prl/pipeline"
	"github.com/prl-project/prl/schemas"
)

// Origin finds the version of a run from which another one can begin: it has a checkpoint. Where it has none the nearest
// ones are named.
func Origin(ctx context.Context, rt *pipeline.Runtime, version int64) (*schemas.PolicyVersion, error) {
	published, err := versions(ctx, rt)
	if err != nil {
		return nil, fmt.Errorf("begin from version %d of run %s: %w", version, rt.Run.Name, err)
	}
	return OriginAmong(ctx, rt.Blobs, published, rt.Run.Name, version)
}

// kept names the versions next to one whose checkpoint is still there.
func (h history) kept(ctx context.Context, blobs *pipeline.Blobs, version int64) string {
	left := make(history, len(h))
	for i, v := range h {
		left[i] = v
		if v.Checkpoint == nil {
			continue
		}
		if there, err := blobs.Has(ctx, *v.Checkpoint); err != nil || !there {
			without := *v
			without.Checkpoint = nil
			left[i] = &without
		}
	}
	return left.checkpointsAround(version)
}

// OriginAmong is Origin where the versions of the run, in order and without a gap, are at hand; blobs is the run's store.
func OriginAmong(ctx context.Context, blobs *pipeline.Blobs, published []*schemas.PolicyVersion, run string, version int64) (*schemas.PolicyVersion, error) {
	h := history(published)
	v := h.at(version)
	switch {
	case v == nil:
		return nil, fmt.Errorf("begin from version %d of run %s: it %s", version, run, h)
	case v.Checkpoint == nil:
		return nil, fmt.Errorf("begin from version %d of run %s: it has no checkpoint to train on from; %s (trainer.checkpoint_interval makes more)", version, run, h.checkpointsAround(version))
	}
	there, err := blobs.Has(ctx, *v.Checkpoint)
	if err != nil {
		return nil, fmt.Errorf("begin from version %d of run %s: %w", version, run, err)
	}
	if !there { // clean-up keeps few
		return nil, fmt.Errorf("begin from version %d of run %s: its checkpoint was cleaned up; %s", version, run, h.kept(ctx, blobs, version))
	}
	return v, nil
}

// checkpointsAround names the versions with a checkpoint next to one that has none.
func (h history) checkpointsAround(version int64) string {
	before, after := int64(-1), int64(-1)
	for _, v := range h {
		switch {
		case v.Checkpoint == nil:
		case v.Version < version:
			before = v.Version
		case after < 0:
			after = v.Version
		}
	}
	switch {
	case before < 0 && after < 0:
		return "no version has"
	case after < 0:
		return fmt.Sprintf("the nearest that has is %d", before)
	case before < 0:
		return fmt.Sprintf("the nearest that has is %d", after)
	}
	return fmt.Sprintf("the nearest that have are %d and %d", before, after)
}

// Begun reports whether a run has begun with a version of another one. That it has begun otherwise is an error.
func Begun(ctx context.Context, rt *pipeline.Runtime, from string, version int64) (bool, error) {
	published, err := versions(ctx, rt)
	if err != nil || len(published) == 0 {
		return false, err
	}
	if first := published[0]; first.FromRun != from || first.Version != version {
		return false, fmt.Errorf("run %s has begun, %s: choose another --run to begin from %s@%d", rt.Run.Name, beginning(first), from, version)
	}
	return true, nil
}

// Begin makes a version of another run the first one of a new run, whose numbers go on from there. What it names is copied
// from blobs, the other run's store. states, the first state of stages that have to know, is in the same transaction. A run
// that has begun so already stays as it is, its trainer too; any other that has begun is refused.
func Begin(ctx context.Context, rt *pipeline.Runtime, from string, blobs *pipeline.Blobs, origin *schemas.PolicyVersion, states []*schemas.StageState) error {
	if begun, err := Begun(ctx, rt, from, origin.Version); begun || err != nil {
		return err
	}
	p, err := claim(ctx, rt)
	if err != nil {
		return err
	}
	defer p.close()
	if begun, err := Begun(ctx, rt, from, origin.Version); begun || err != nil { // before the claim
		return err
	}
	v := &schemas.PolicyVersion{
		Version: origin.Version, Step: origin.Step, Kind: kindFull, NextOffsets: make([]int64, rt.Run.Ranks),
		Metrics: origin.Metrics, FromRun: from,
	}
	if origin.Kind != kindFull {
		return fmt.Errorf("begin from version %d of run %s: its weights are a %s; only whole ones can be begun from", origin.Version, from, origin.Kind)
	}
	take := func(prefix string, ref schemas.BlobRef) (copied schemas.BlobRef) {
		if err != nil {
			return copied
		}
		data, failed := blobs.Get(ctx, ref)
		if failed == nil {
			copied, failed = rt.Blobs.Put(ctx, prefix, data)
		}
		err = failed
		return copied
	}
	v.Config, v.Tokenizer = take(modelPrefix, origin.Config), take(modelPrefix, origin.Tokenizer)
	v.Weights = take(weightsPrefix, origin.Weights)
	if origin.Checkpoint != nil { // else nothing trains on from it
		v.Checkpoint = new(take(checkpointPrefix, *origin.Checkpoint))
	}
	if err != nil {
		return fmt.Errorf("take over version %d of run %s: %w", origin.Version, from, err)
	}
	emissions := []pipeline.Emission{{Topic: pipeline.TopicPolicies, Partition: pipeline.AutoPartition, Value: v}}
	for _, s := range states {
		emissions = append(emissions, pipeline.Emission{Topic: pipeline.TopicState, Partition: pipeline.AutoPartition, Value: s})
	}
	if err := p.commit(ctx, emissions, nil); err != nil {
		return fmt.Errorf("begin run %s from %s@%d: %w", rt.Run.Name, from, origin.Version, err)
	}
	return nil
}

// beginning says what a run's first version is.
func beginning(first *schemas.PolicyVersion) string {
	if first.FromRun == "" {
		return "at version 0"
	}
	return fmt.Sprintf("from %s@%d", first.FromRun, first.Version)
}
