package trainer

import (
	"context"
	"errors"
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
	return begin(ctx, rt, from, blobs, origin, states, func(v *schemas.PolicyVersion) (err error) {
		if origin.Kind != schemas.KindFull {
			return fmt.Errorf("its weights are a %s; training goes on from whole ones only", origin.Kind)
		}
		if v.Weights, err = rt.Blobs.Take(ctx, blobs, weightsPrefix, origin.Weights); err != nil || origin.Checkpoint == nil {
			return err
		}
		checkpoint, err := rt.Blobs.Take(ctx, blobs, checkpointPrefix, *origin.Checkpoint)
		v.Checkpoint = &checkpoint
		return err
	})
}

// BeginToPlay is Begin for a run that trains nothing: of any version among published, those of the other run, the first one
// of the new run has the whole weights, and no checkpoint.
func BeginToPlay(ctx context.Context, rt *pipeline.Runtime, from string, blobs *pipeline.Blobs, published []*schemas.PolicyVersion, origin *schemas.PolicyVersion) error {
	return begin(ctx, rt, from, blobs, origin, nil, func(v *schemas.PolicyVersion) (err error) {
		if origin.Kind == schemas.KindFull {
			v.Weights, err = rt.Blobs.Take(ctx, blobs, weightsPrefix, origin.Weights)
			return err
		}
		s, err := openScratch(rt.Scratch)
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, s.remove()) }()
		path := s.path(weightsPrefix)
		if err := writeWhole(ctx, blobs, path, published, origin); err != nil {
			return err
		}
		v.Weights, err = rt.Blobs.PutFile(ctx, weightsPrefix, path)
		return err
	})
}

// begin begins a run; take names what is trained of the version in v, once it is in the run's store.
func begin(ctx context.Context, rt *pipeline.Runtime, from string, blobs *pipeline.Blobs, origin *schemas.PolicyVersion, states []*schemas.StageState, take func(v *schemas.PolicyVersion) error) error {
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
		Version: origin.Version, Step: origin.Step, Kind: schemas.KindFull, NextOffsets: make([]int64, rt.Run.Ranks),
		Metrics: origin.Metrics, FromRun: from,
	}
	if v.Config, err = rt.Blobs.Take(ctx, blobs, modelPrefix, origin.Config); err == nil {
		v.Tokenizer, err = rt.Blobs.Take(ctx, blobs, modelPrefix, origin.Tokenizer)
	}
	if err == nil {
		err = take(v)
	}
	if err != nil {
		return fmt.Errorf("begin from version %d of run %s: take it over: %w", origin.Version, from, err)
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
